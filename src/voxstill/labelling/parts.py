"""Label in parts: several commands share one table, each takes its own chunks, and a scheduler starts them anew.

Which part takes a chunk depends on the chunk's name alone. So parts need not talk to each other, and one that is
started again goes on with its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from voxstill.core.errors import ConfigError
from voxstill.storage import lease
from voxstill.storage.store import Store

AGREED = "_parts.json"


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number` of `total`, counted from 1."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> Self:
        """Read `K/N`, or take `auto` from the variables of a Slurm array or an indexed Kubernetes job.

        ConfigError where it is no part. Slurm says all by itself; Kubernetes says no total, which VOXSTILL_PARTS does.
        """
        if text == "auto":
            return cls._of_scheduler(environment)
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(
                f"`--part {text}` is no part", why="a part is K/N, K from 1 to N", fix="write 1/4 or auto"
            )
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def _of_scheduler(cls, environment: Mapping[str, str]) -> Self:
        try:
            if "SLURM_ARRAY_TASK_ID" in environment:
                first, step = int(environment["SLURM_ARRAY_TASK_MIN"]), int(environment.get("SLURM_ARRAY_TASK_STEP", 1))
                number = (int(environment["SLURM_ARRAY_TASK_ID"]) - first) // step
                return cls(number + 1, int(environment["SLURM_ARRAY_TASK_COUNT"]))
            return cls(int(environment["JOB_COMPLETION_INDEX"]) + 1, int(environment["VOXSTILL_PARTS"]))
        except (KeyError, ValueError) as error:
            raise ConfigError(
                "`--part auto` has nothing to go by",
                why=f"{error} is not set: neither a Slurm array nor an indexed Kubernetes job with VOXSTILL_PARTS",
                fix="write --part K/N; in a Kubernetes job set VOXSTILL_PARTS to its completions",
            ) from None

    def takes(self, chunk: str) -> bool:
        """Whether the chunk of this name is of this part."""
        return int(chunk, 16) % self.total == self.number - 1


@contextmanager
def hold(work: Store, table: str, part: Part | None, size: int) -> Iterator[lease.Lease]:
    """Hold the lease of a table, or of a part of it; StorageError where others that do not go with it hold theirs.

    ConfigError where other parts have another number or chunks of another size.
    """
    if part is None:
        with lease.hold(work, table, "label") as held:
            for below in lease.below(work, table):
                lease.check_free(work, below)
            work.delete(f"{table}/{AGREED}")
            yield held
        return
    name = f"{part.number}/{part.total}"
    with lease.hold(work, f"{table}/part-{part.number}-of-{part.total}", f"label --part {name}") as held:
        lease.check_free(work, table)
        _agree(work, table, {"parts": part.total, "chunk": size})
        yield held


def _agree(work: Store, table: str, terms: dict[str, object]) -> None:
    """All parts have one total and one size of chunks: else some chunks would be of two parts, or of none."""
    agreed = work.read_json(f"{table}/{AGREED}")
    if agreed is None:
        work.write_json(f"{table}/{AGREED}", terms)
        agreed = work.read_json(f"{table}/{AGREED}")
    if agreed != terms and agreed is not None:
        raise ConfigError(
            f"`{table}` in `{work.root}` is labelled in {agreed['parts']} parts with chunks of {agreed['chunk']}",
            why=f"this is one of {terms['parts']} with chunks of {terms['chunk']}",
            fix=f"use --part K/{agreed['parts']} and engine.chunk={agreed['chunk']}; "
            "`voxstill label` without --part does what is left once no part runs any more",
        )
