"""Diarization: who speaks when in a recording; one file for each engine."""
