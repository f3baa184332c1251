"""Metrics: word, character, speaker and class errors, with confidence intervals and paired tests."""
