"""A rank that reads its batches and appends a hash of each to a file, until it has read all or is killed."""

import hashlib
import time
from pathlib import Path

from noise_corpus import corpus_of
from voxstill.core.config import Plan
from voxstill.core.records import Batch
from voxstill.data.loader import Batches, Loader
from voxstill.data.plan import plan
from voxstill.storage.store import Store

SLOTS = 8


def hash_of(batch: Batch) -> str:
    """Hash of all tensors and ids."""
    digest = hashlib.sha256(repr(batch.ids).encode())
    for name in Batch.__slots__[1:]:
        digest.update(getattr(batch, name).numpy().tobytes())
    return digest.hexdigest()


def read(root: str, rank: int, ranks: int, workers: int, first: int, pause_s: float, out: Path) -> None:
    """A line for each batch: step, slot, hash."""
    corpus = corpus_of(Store(root))
    epoch_plan = plan(
        corpus.durations_ms, corpus.num_tokens, Plan(budget_ms=1700, batches_per_step=SLOTS), seed=0, epoch=0
    )
    with out.open("a", buffering=1) as lines:
        steps = Loader(Batches(corpus, epoch_plan, rank=rank, ranks=ranks), first=first, workers=workers)
        for step, batches in enumerate(steps, start=first):
            for at, batch in enumerate(batches):
                lines.write(f"{step} {rank * SLOTS // ranks + at} {hash_of(batch)}\n")
            time.sleep(pause_s)
