"""The engine under every distributed step: chunks pass through stages of workers and are committed once each."""

from voxstill.engine.postponed import Outage, Postponed
from voxstill.engine.ray_cluster import shutdown, start_ray
from voxstill.engine.retry import describe
from voxstill.engine.runner import run
from voxstill.engine.stage import (
    Change,
    Changes,
    Chunk,
    Stage,
    StageWork,
    chunk_id,
    chunks_of,
    is_set_aside,
    set_aside_error,
)

__all__ = [
    "Change",
    "Changes",
    "Chunk",
    "Outage",
    "Postponed",
    "Stage",
    "StageWork",
    "chunk_id",
    "chunks_of",
    "describe",
    "is_set_aside",
    "run",
    "set_aside_error",
    "shutdown",
    "start_ray",
]
