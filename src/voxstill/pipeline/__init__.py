"""The pipeline, one file for each step: what the command of that name does, as Python functions."""
