"""Reports: figures as an HTML page, Markdown and JSON."""
