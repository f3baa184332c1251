"""The tasks of classifiers and how their classes are named, without torch: any model is asked whether it is one."""

from __future__ import annotations

from typing import Literal

Task = Literal["classes", "speakers"]
HEADS: dict[Task, str] = {"classes": "ForSequenceClassification", "speakers": "ForXVector"}
"""How names of classes in `transformers` end, and names of those in `classifiers`."""
