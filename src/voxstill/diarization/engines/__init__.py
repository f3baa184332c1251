"""Diarization engines: one file each."""
