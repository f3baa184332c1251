"""Features, students and losses."""
