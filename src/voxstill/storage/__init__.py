"""Folders, buckets and tables: what is read and written, and every name on disk."""
