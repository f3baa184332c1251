"""One page per command, read like a table of contents."""
