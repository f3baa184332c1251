"""The version of this package, which figures and experiments are stamped with."""

__version__ = "0.2.0"
