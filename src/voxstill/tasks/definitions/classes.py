"""The task `classes`: a student that classifies whole utterances."""

from voxstill.tasks.classifier import Classification

CLASSES = Classification("classes")
