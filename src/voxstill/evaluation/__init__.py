"""Evaluation: inference on utterances with references, error rates, and reports."""
