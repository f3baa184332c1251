"""Steps that read tables and add a table, all through one engine."""
