"""The steps of the line, one file each: what a command of that name does, for Python."""
