"""Metrics for Prometheus: what steps and trainings report of themselves, computed when it is scraped."""
