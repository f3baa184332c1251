"""The task `classes`: a student that classifies whole utterances."""

from voxstill.tasks.classification import Classification

CLASSES = Classification("classes")
