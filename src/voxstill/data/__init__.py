"""The plan of an epoch and the loader that follows it."""
