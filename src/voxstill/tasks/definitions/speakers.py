"""The task `speakers`: a student that compares voices."""

from voxstill.tasks.classifier import Classification

SPEAKERS = Classification("speakers")
