"""Accelerators by name: their memory and speed, from the data sheets of their makers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from voxstill.core.errors import ConfigError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """An accelerator. `memory_gib` is what CUDA says of it, which is less than the name does."""

    name: str
    memory_gib: float
    half_tflops: float
    """Dense, with 16-bit inputs and sums of 32 bits."""
    fp32_tflops: float
    has_bf16: bool = True

    @property
    def memory_bytes(self) -> int:
        """All of its memory."""
        return int(self.memory_gib * GIB)

    def tflops(self, precision: str) -> float:
        """The most that it computes in a precision, in 10^12 operations a second."""
        return self.fp32_tflops if precision == "fp32" else self.half_tflops


CARDS = {
    card.name: card
    for card in (
        Card("b200", 178.0, 2250, 75),
        Card("h200", 139.8, 989, 67),
        Card("h100", 79.1, 989, 67),
        Card("h20", 95.0, 148, 44),
        Card("a100-80", 79.1, 312, 19.5),
        Card("a100-40", 39.4, 312, 19.5),
        Card("l40s", 44.4, 362, 91.6),
        Card("l4", 22.0, 121, 30.3),
        Card("a30", 23.6, 165, 10.3),
        Card("a10", 22.0, 125, 31.2),
        Card("t4", 14.6, 65, 8.1, has_bf16=False),
        Card("v100-32", 31.7, 125, 15.7, has_bf16=False),
        Card("v100-16", 15.8, 125, 15.7, has_bf16=False),
        Card("rtx5090", 31.4, 209, 104.8),
        Card("rtx4090", 23.5, 165, 82.6),
        Card("rtx3090", 23.7, 71, 35.6),
    )
}
_SAME = {"a100": "a100-80", "v100": "v100-16"}
"""The one that is meant where the memory is not named."""


def find(name: str) -> Card:
    """The accelerator of a name, however it is written; ConfigError if it is not known."""
    plain = _plain(name)
    for known, card in (*CARDS.items(), *((alias, CARDS[of]) for alias, of in _SAME.items())):
        if plain in (_plain(known), f"{_plain(known)}gb"):
            return card
    raise ConfigError(
        f"`{name}` is not a known accelerator",
        code="unknown-name",
        why=f"known are {', '.join(CARDS)}",
        fix="use the one with the same amount of memory",
    )


def named_by_driver(name: str) -> Card | None:
    """The accelerator that a driver calls so, `NVIDIA H100 80GB HBM3` among others; None if it is not known."""
    plain = _plain(name)
    fitting = [card for known, card in CARDS.items() if _plain(known.partition("-")[0]) in plain]
    sized = [card for card in fitting if "-" not in card.name or f"{card.name.partition('-')[2]}gb" in plain]
    return max(sized, key=lambda card: len(card.name), default=None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]|nvidia|geforce", "", name.lower())
