"""Filter: what is measured of a label, which rules it must pass, and how thresholds are tuned."""
