"""Pseudo-labels: a teacher's label for every utterance, consensus, alignment."""
