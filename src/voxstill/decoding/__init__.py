"""Inference: from models and frames to hypotheses."""
