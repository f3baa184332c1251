"""A driver to be killed: labels 60 items in chunks of 4 into a folder, by Ray or another engine, and goes on there."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from voxstill import engine
from voxstill.core.config import Engine
from voxstill.core.records import Label
from voxstill.storage import tables
from voxstill.storage.store import Store


class Decode(engine.StageWork):
    def __call__(self, items: Sequence[int], payload: Any) -> Any:
        return np.concatenate([np.full(50_000, item, np.int16) for item in items])


class Transcribe(engine.StageWork):
    def __call__(self, items: Sequence[int], payload: Any) -> list[Label]:
        time.sleep(0.2)
        return [
            Label(
                utterance_id=str(item),
                recipe="r",
                teacher="t",
                text=str(payload[50_000 * k : 50_000 * k + 50_000].sum()),
            )
            for k, item in enumerate(items)
        ]


def main(folder: str, name: str = "ray") -> None:
    store = Store(folder)
    finished_ids = {entry.key.removesuffix(".parquet") for entry in store.list()}
    engine.run(
        [chunk for chunk in engine.chunks_of(range(60), 4, str) if chunk.id not in finished_ids],
        (
            engine.Stage(name="decode", work=Decode(), workers=1),
            engine.Stage(name="teach", work=Transcribe(), workers=2),
        ),
        lambda chunk, rows: store.create(f"{chunk.id}.parquet", tables.to_parquet(rows, Label)) and None,
        lambda item, reason: Label(utterance_id=str(item), recipe="r", teacher="t", error=reason),
        Engine.model_validate({"name": name}),
    )
    engine.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
