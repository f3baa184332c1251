"""One teacher, one file."""
