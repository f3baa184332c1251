"""The task `speakers`: a student that compares voices."""

from voxstill.tasks.classification import Classification

SPEAKERS = Classification("speakers")
