"""Random numbers of a test that can be replayed: its seed is printed, and taken from the environment."""

from __future__ import annotations

import os
import random
import secrets

VARIABLE = "VOXSTILL_TEST_SEED"


def seeded_random() -> random.Random:
    """A generator with a fresh seed, or that of `VOXSTILL_TEST_SEED`; pytest shows what a failed test has printed."""
    seed = int(os.environ.get(VARIABLE) or secrets.randbits(32))
    print(f"{VARIABLE}={seed}")  # noqa: T201
    return random.Random(seed)
