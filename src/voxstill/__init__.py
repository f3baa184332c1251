"""voxstill distils a large speech recogniser into a small one of your own."""

__version__ = "0.1.0"
