"""Errors counted, and how sure of them we are."""
