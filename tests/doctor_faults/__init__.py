"""Faults for `benchmarks/doctor.py` and the short form of it in the tests."""
