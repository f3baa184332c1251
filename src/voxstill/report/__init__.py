"""Figures as a page."""
