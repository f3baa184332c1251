"""The task `recognition`: a student that writes what was said."""

from voxstill.tasks.recognition import Recognition

RECOGNITION = Recognition()
