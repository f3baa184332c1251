"""From frames to hypotheses."""
