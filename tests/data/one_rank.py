"""One of some processes that train together: reads its part of every corpus in a folder, in step with the others."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from noise_corpus import encode
from voxstill.core.config import Plan
from voxstill.data.loader import Batches, Loader
from voxstill.data.plan import plan
from voxstill.data.shard_index import open_index
from voxstill.storage.store import Store


def read_corpora(folder: Path, rank: int, ranks: int) -> None:
    """Print the figures of each corpus as a line of JSON."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks, timeout=timedelta(seconds=250)
    )
    for place in sorted(folder.glob("corpus-*")):
        prefix = next((f"shards/{shards.name}" for shards in place.glob("shards/*")), "s")
        corpus = open_index(Store(str(place)), prefix, place / "index", splits=("train",), encode=encode, encoder="")
        epoch_plan = plan(
            corpus.durations_ms, corpus.num_tokens, Plan(budget_ms=3000, batches_per_step=8), seed=0, epoch=0
        )
        ids: list[str] = []
        steps = 0
        loader = Loader(Batches(corpus, epoch_plan, rank=rank, ranks=ranks), workers=rank % 2, max_unread=0.5)
        for batches in loader:
            ids += [name for batch in batches for name, weight in zip(batch.ids, batch.weight_B, strict=True) if weight]
            present = torch.ones(1)
            dist.all_reduce(present)  # a rank that has fewer steps than another would leave it waiting here
            assert present.item() == ranks
            steps += 1
        facts = {
            "corpus": place.name,
            "steps": steps,
            "ids": ids,
            "replaced": loader.replaced,
            "repeated": epoch_plan.num_repeated,
        }
        sys.stdout.write(json.dumps(facts) + "\n")
