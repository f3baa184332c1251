"""Reports: one HTML page, and the same as Markdown and JSON."""
