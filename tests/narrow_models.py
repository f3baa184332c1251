"""Models narrower than the smallest that there are, for tests of how a training goes and not of how much it learns.

A training of a student takes less than half as long with one, and its checkpoints are a thirtieth.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from voxstill.nn import self_supervised, students

if TYPE_CHECKING:
    from voxstill.training.setup import Build

STUDENT = students.Shape(hidden=32, layers=2, heads=2, stem=8, predictor=32)
WAV2VEC2 = {
    **self_supervised.SHAPES["tiny"],
    **{"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96},
    **{"conv_dim": (16,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2},
}


def narrow(patch: pytest.MonkeyPatch) -> None:
    """Models of the size `tiny` that are built in this process until the patch is undone are narrower."""
    patch.setitem(students.SHAPES, "tiny", STUDENT)
    patch.setitem(self_supervised.SHAPES, "tiny", WAV2VEC2)


@contextlib.contextmanager
def narrow_models() -> Iterator[None]:
    """Models of the size `tiny` that are built within the block are narrower."""
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch)
        yield


def narrowed(build: Build) -> Build:
    """The same that builds such models, in whatever process it is called."""
    return functools.partial(_build, build)


def _build(build: Build, *arguments: Any) -> Any:
    with narrow_models():
        return build(*arguments)
