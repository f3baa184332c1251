"""A task of another package, in one file: several tags for each utterance, which are the words of its text.

`TAGGING` is what its entry point in the group `voxstill.tasks` names.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from voxstill.core.config import Config
from voxstill.core.records import Batch, Utterance, Word
from voxstill.evaluation.recognition import read_audio
from voxstill.evaluation.results import Evaluation
from voxstill.nn import checkpoints, classifiers
from voxstill.nn.frontends import Frontend
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.tasks.data import Corpus
from voxstill.text.normalize import normalizer
from voxstill.training.experiment import save_model, write_extractor, write_whole
from voxstill.training.setup import TrainingSetup
from voxstill.training.task import DevBatch, Loss, ModelInput, StepContext, Task, Unit


class TagEncoder:
    """A `Tokenizer` of tags: each tag of an utterance is a token, its place among the names, in no order."""

    unit = "tag"

    def __init__(self, names: Sequence[str]) -> None:
        self.pieces = names

    @property
    def key(self) -> tuple[Any, ...]:
        return "tags", *self.pieces

    def encode(self, text: str, words: Sequence[Word] = ()) -> tuple[list[int], list[tuple[int, int]]]:
        ids = [i for i, name in enumerate(self.pieces) if name in text.split()]
        return ids, [(-1, -1)] * len(ids)

    def save(self, folder: Path, features: Mapping[str, Any], kind: Any) -> None:
        """The names are in the `config.json` of the model."""


class TaggingTask:
    """A `Task`: binary cross-entropy of every tag, the mean over the tags of each utterance."""

    unit: Unit = "utterances"

    def __init__(self, names: Sequence[str], frontend: Frontend) -> None:
        self.names, self.frontend = names, frontend

    def prepare(self, batch: Batch, progress: float, generator: Generator) -> ModelInput:
        augmented = self.frontend.extract_augmented(
            batch.audio_BT, batch.audio_len_B, batch.tempo_B, progress, generator
        )
        return ModelInput(batch, *augmented)

    def loss(self, model: nn.Module, model_input: ModelInput, context: StepContext) -> Loss:
        batch = model_input.batch
        score_BC, _ = classifiers.scores(model, model_input.inputs, model_input.len_B)
        has_tag_BC = (batch.tokens_BU[..., None] == torch.arange(len(self.names), device=score_BC.device)).any(1)
        loss_BC = functional.binary_cross_entropy_with_logits(score_BC.float(), has_tag_BC.float(), reduction="none")
        return Loss((loss_BC.mean(1) * batch.weight_B).sum() / context.count(self.unit))

    def validate(self, model: nn.Module, batches: Iterable[DevBatch]) -> dict[str, float] | None:
        pairs = []
        for dev in batches:
            tags = self.tags(model, dev.batch.audio_BT, dev.batch.audio_len_B)
            pairs += [(set(text.split()), predicted) for text, predicted in zip(dev.references, tags, strict=True)]
        return figures(pairs) if pairs else None

    @torch.no_grad()
    def tags(self, model: nn.Module, audio_BT: Tensor, audio_len_B: Tensor) -> list[set[str]]:
        score_BC, _ = classifiers.scores(model, *self.frontend.extract(audio_BT, audio_len_B))
        return [{self.names[c] for c in row.nonzero()[:, 0].tolist()} for row in score_BC > 0]

    def watch(self, step: int, figures: Mapping[str, float]) -> None: ...

    def move(self, device: torch.device) -> None:
        self.frontend.move(device)


def figures(pairs: Sequence[tuple[set[str], set[str]]]) -> dict[str, float]:
    """The share of utterances with a wrong tag, a tag too many or too few; F1 over all tags; exact matches."""
    right = sum(len(wanted & predicted) for wanted, predicted in pairs)
    exact = sum(wanted == predicted for wanted, predicted in pairs) / len(pairs)
    of_all = sum(len(wanted) + len(predicted) for wanted, predicted in pairs)
    return {"error": 1 - exact, "exact_match": exact, "f1": 2 * right / of_all, "utterances": len(pairs)}


class Tagging:
    """The `TaskDefinition`."""

    def needs_labels(self, cfg: Config) -> bool:
        return True

    def build(self, fabric: Any, cfg: Config, run: RunDir, store: Store, prefix: str) -> TrainingSetup:
        normalize = normalizer(cfg.student.text)
        with fabric.rank_zero_first():
            texts = Corpus.texts(store, prefix, "train", normalize)
            names = sorted({tag for text in texts for tag in text.split()})
            run.corpus.mkdir(parents=True, exist_ok=True)
            write_whole(run.corpus / "tags.json", {"names": names})
            frontend = checkpoints.make_frontend(None, cfg.augment)
            ranks = {"rank": fabric.global_rank, "ranks": fabric.world_size}
            data = Corpus(store, prefix, run.corpus, TagEncoder(names), normalize, frontend, cfg, **ranks)
        model = self._model(cfg, names)

        def save(run: RunDir, weights: dict[str, Tensor]) -> None:
            save_model(run, model, weights, functools.partial(write_extractor, frontend))

        task = TaggingTask(names, frontend)
        about = f"a {cfg.student.size} FastConformer of {len(names)} tags"
        return TrainingSetup(model, task, data, about, notes={"tags": len(names)}, error="dev_error", save=save)

    def rebuild(self, cfg: Config, run: RunDir) -> tuple[Frontend, Any, Task]:
        if run.model.is_dir():  # finished: what was made of the corpus is gone
            names = classifiers.names_of(classifiers.load(run.model))
        else:
            names = json.loads((run.corpus / "tags.json").read_text())["names"]
        frontend = checkpoints.make_frontend(None, cfg.augment)
        return frontend, self._model(cfg, names), TaggingTask(names, frontend)

    def recognizes(self, target: str) -> bool:
        folder = next(
            (path for path in (Path(target), Path(target) / "model") if (path / "config.json").is_file()), None
        )
        if folder is None:
            return False
        return json.loads((folder / "config.json").read_text()).get("problem_type") == "multi_label_classification"

    def evaluate(self, cfg: Config, target: str, utterances: Sequence[Utterance]) -> Evaluation:
        model = classifiers.load(Path(target) / "model").eval()
        task = TaggingTask(classifiers.names_of(model), checkpoints.make_frontend(model.config, cfg.augment))
        audio, unread = read_audio(cfg, [row for row in utterances if row.text])
        tags = {}
        for utterance, samples_T in audio:
            audio_1T = torch.from_numpy(samples_T)[None]
            (tags[utterance.id],) = task.tags(model, audio_1T, torch.tensor([len(samples_T)]))
        pairs = [(set((utterance.text or "").split()), tags[utterance.id]) for utterance, _ in audio]
        split = cfg.evaluate.split
        rows = "".join(json.dumps({"id": id_, "tags": sorted(names)}) + "\n" for id_, names in tags.items())
        about = {"model": target, "split": split, "task": "tagging", "unread": unread}
        return Evaluation(figures={**about, **figures(pairs)}, files={"tags.jsonl": rows})

    def _model(self, cfg: Config, names: Sequence[str]) -> Any:
        model = classifiers.new(cfg.student, names, cfg.seed, {"text": cfg.student.text})
        model.config.problem_type = "multi_label_classification"
        return model


TAGGING = Tagging()
