"""The explorer of a corpus: one joined file of its tables, an API over it, and the page that shows it."""
