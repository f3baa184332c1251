"""The corpus of the demo: synthetic voices that speak commands."""
