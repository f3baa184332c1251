"""The tasks of voxstill: one file each, named as `student.task` says it."""
