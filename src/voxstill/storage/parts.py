"""Make a table in parts: several commands share it, each takes its own items, and a scheduler starts them again.

Which part takes an item depends on the item's name alone. So parts need no communication, and one that is
started again continues with its own. The part that finds everything there finishes the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from voxstill.core import world
from voxstill.core.config import Engine
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log
from voxstill.storage import lease
from voxstill.storage.store import Store

AGREED = "_parts.json"
"""What all parts of a table have in common; it goes when the table is finished."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number` of `total`, counted from 1."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> Self:
        """Read `K/N`, or take `auto` from the variables of a Slurm array or an indexed Kubernetes job.

        ConfigError if it is not a part. Slurm says all by itself; Kubernetes says no total, which VOXSTILL_PARTS does.
        """
        if text == "auto":
            return cls._of_scheduler(environment)
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(
                f"`--part {text}` is not a part",
                code="wrong-part",
                why="a part is K/N, with K from 1 to N",
                fix="write 1/4 or auto",
            )
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def _of_scheduler(cls, environment: Mapping[str, str]) -> Self:
        try:
            if "SLURM_ARRAY_TASK_ID" in environment:
                first, step = int(environment["SLURM_ARRAY_TASK_MIN"]), int(environment.get("SLURM_ARRAY_TASK_STEP", 1))
                number = (int(environment["SLURM_ARRAY_TASK_ID"]) - first) // step
                part = cls(number + 1, int(environment["SLURM_ARRAY_TASK_COUNT"]))
            else:
                part = cls(int(environment["JOB_COMPLETION_INDEX"]) + 1, int(environment["VOXSTILL_PARTS"]))
        except (KeyError, ValueError) as error:
            raise ConfigError(
                "`--part auto` finds no job array",
                code="wrong-part",
                why=f"{error} is not set: neither a Slurm array nor an indexed Kubernetes job with VOXSTILL_PARTS",
                fix="write --part K/N; in a Kubernetes job set VOXSTILL_PARTS to its completions",
            ) from None
        if not 1 <= part.number <= part.total:
            raise ConfigError(
                f"`--part auto` is part {part.number} of {part.total}",
                code="wrong-part",
                why="the array has gaps, or VOXSTILL_PARTS is not the number of completions of the job",
                fix="number the array without gaps, as --array=1-4 does, or set VOXSTILL_PARTS to the completions",
            )
        return part

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"

    @property
    def file_name(self) -> str:
        """The name of what is of this part alone."""
        return f"part-{self.number}-of-{self.total}"

    def number_of(self, item: str) -> int:
        """The number of the part that takes the item of this name, which is a hash in hexadecimal digits."""
        return int(item, 16) % self.total + 1

    def takes(self, item: str) -> bool:
        """Whether the item of this name is of this part."""
        return self.number_of(item) == self.number


def requested(text: str | None) -> Part | None:
    """The part that `--part` asks for, None if it asks for the whole; ConfigError if it is not a part."""
    return None if text is None else Part.parse(text, world.environment())


def lease_name(table: str, part: Part | None) -> str:
    """The name of the lease of a table, or of a part of it."""
    return table if part is None else f"{table}/{part.file_name}"


@contextmanager
def hold(work: Store, table: str, step: str, part: Part | None, cfg: Engine, *, of: str = "") -> Iterator[lease.Lease]:
    """Hold the lease of a table, or of a part of it; StorageError if others that do not go with it hold theirs.

    `of` is the table that it is made of. ConfigError if other parts have another number, chunks of another size or
    another table.
    """
    own = lease_name(table, part)
    if part is None:
        with lease.hold(work, own, step) as held:
            lease.check_free(work, *lease.below(work, table))
            work.delete(f"{table}/{AGREED}")
            yield held
        return
    with lease.hold(work, own, f"{step} --part {part}", waits=True) as held:
        lease.check_free(work, table)
        _agree(work, table, step, {"parts": part.total, "chunk": cfg.chunk, "chunk_hours": cfg.chunk_hours}, of)
        yield held


def is_finished(step: str, part: Part, left: Iterable[str], *, is_done: bool = True) -> bool:
    """Whether no item is left, of this part or of others; else the log says which parts are missing.

    `left` are the names of the items that are not there; `is_done` says whether this part has done all it could.
    """
    missing: set[int] = set()
    others = set(range(1, part.total + 1)) - {part.number}
    for item in left:
        missing.add(part.number_of(item))
        if missing >= others:  # more cannot be found out
            break
    if not missing:
        return is_done
    state = "done" if is_done and part.number not in missing else "not done, the same command resumes"
    log.info(
        "%s: part %d of %d is %s; %d of %d parts %s still missing: %s",
        step,
        part.number,
        part.total,
        state,
        len(missing),
        part.total,
        "is" if len(missing) == 1 else "are",
        ", ".join(map(str, sorted(missing))),
    )
    return False


def _agree(work: Store, table: str, step: str, sizes: Mapping[str, float], of: str) -> None:
    """All parts have one total, one size of chunks and one input: else some items would be of two parts, or of none."""
    terms: dict[str, str | float] = {**sizes, **({"of": of} if of else {})}
    agreed = work.read_json(f"{table}/{AGREED}")
    if agreed is None:
        ours = f"-of-{terms['parts']}"  # others are of an agreement that ended when the table was finished
        lease.check_free(work, *(below for below in lease.below(work, table) if not below.endswith(ours)))
        work.create(f"{table}/{AGREED}", (json.dumps(terms) + "\n").encode())
        agreed = work.read_json(f"{table}/{AGREED}")
    agreed = {"chunk_hours": Engine().chunk_hours, **(agreed or terms)}  # which earlier versions did not write
    if of and agreed.setdefault("of", of) != of:
        raise ConfigError(
            f"`{table}` in `{work.root}` is made of `{agreed['of']}`, and this part would be of `{of}`",
            code="wrong-part",
            why="the options of an earlier step differ from those of the other parts",
            fix="use the same configuration for all parts",
        )
    if agreed != terms:
        raise ConfigError(
            f"`{table}` in `{work.root}` is made in {agreed['parts']} parts with chunks of {agreed['chunk']} "
            f"utterances and {agreed['chunk_hours']:g} h",
            code="wrong-part",
            why=f"this is one of {terms['parts']} with chunks of {terms['chunk']} and {terms['chunk_hours']:g} h",
            fix=f"use --part K/{agreed['parts']}, engine.chunk={agreed['chunk']} and "
            f"engine.chunk_hours={agreed['chunk_hours']:g}; "
            f"`voxstill {step}` without --part does the rest when no part is running",
        )
