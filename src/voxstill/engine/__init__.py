"""The engine under every distributed step: chunks pass through stages of workers and are committed once each."""

from voxstill.engine.ray_cluster import shutdown, start_ray
from voxstill.engine.runner import run
from voxstill.engine.stage import Change, Changes, Chunk, Stage, StageWork, chunk_id, chunks_of

__all__ = [
    "Change",
    "Changes",
    "Chunk",
    "Stage",
    "StageWork",
    "chunk_id",
    "chunks_of",
    "run",
    "shutdown",
    "start_ray",
]
