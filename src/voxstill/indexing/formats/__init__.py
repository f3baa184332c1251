"""Formats of manifests: each is read as a stream of `SourceEntry`."""
