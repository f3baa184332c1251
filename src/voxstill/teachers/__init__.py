"""Teachers: one file for each recogniser that labels."""
