"""Live transcription: samples in, events out."""
