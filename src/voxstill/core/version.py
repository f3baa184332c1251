"""The version of this package, which figures and experiments are stamped with."""

__version__ = "0.1.0"
