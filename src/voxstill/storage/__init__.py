"""Folders, buckets and tables: reading, writing, and the names of all files on disk."""
