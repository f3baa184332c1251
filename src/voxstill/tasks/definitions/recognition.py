"""The task `recognition`: a student that writes what was said.

What trains and judges one is imported when it is asked for: to transcribe with a student needs none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from voxstill.core.config import Config
from voxstill.core.records import Utterance
from voxstill.decoding.checkpoint_files import architecture
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch import Tensor

    from voxstill.evaluation.results import Evaluation
    from voxstill.nn.frontends import Frontend
    from voxstill.tasks.data import Corpus
    from voxstill.training.setup import TrainingSetup
    from voxstill.training.task import Task

HEADS = ("ForCTC", "ForRNNT", "ForTDT", "ForConditionalGeneration")
"""How the names of recognisers in `transformers` end."""


@dataclass(frozen=True, slots=True)
class Recognition:
    """The `TaskDefinition` of students that write what was said."""

    def needs_labels(self, cfg: Config) -> bool:
        """Return True: the texts are the labels."""
        return True

    def build(self, fabric: Fabric, cfg: Config, run: RunDir, store: Store, prefix: str) -> TrainingSetup:
        """Build what the training loop needs."""
        from voxstill.tasks import recognition

        return recognition.build(fabric, cfg, run, store, prefix)

    def corpus(self, cfg: Config, run: RunDir, store: Store, prefix: str) -> Corpus:
        """Open the shards as a training in one process learns from them."""
        from voxstill.tasks import recognition

        return recognition.open_corpus(cfg, run, store, prefix)

    def rebuild(self, cfg: Config, run: RunDir) -> tuple[Frontend, Any, Task]:
        """Build the frontend, the model before its first step, and the task of an experiment."""
        from voxstill.tasks import recognition

        return recognition.rebuild(cfg, run)

    def save(self, cfg: Config, run: RunDir, weights: dict[str, Tensor], output: RunDir) -> None:
        """Write the student of an experiment with other weights, those of a checkpoint."""
        from voxstill.tasks import recognition

        recognition.save(cfg, run, weights, output)

    def recognizes(self, target: str) -> bool:
        """Return whether an experiment or a model folder holds a model with the head of a recogniser."""
        return architecture(target).endswith(HEADS)

    def evaluate(self, cfg: Config, target: str, utterances: Sequence[Utterance]) -> Evaluation:
        """Judge a finished student by those utterances of one split that have human words."""
        from voxstill.evaluation import recognition

        return recognition.evaluation(cfg, target, utterances)


RECOGNITION = Recognition()
