"""The task `recognition`: a student that writes what was said, by CTC, a transducer or an encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from voxstill.core.atomic import write_atomically
from voxstill.core.config import Config, Student
from voxstill.core.errors import DataError, first_line
from voxstill.core.monitor import log
from voxstill.decoding.checkpoint_files import model_folder
from voxstill.nn import checkpoints, freezing, students
from voxstill.nn.augment_waveform import NoiseBank
from voxstill.nn.frontends import Frontend
from voxstill.storage import checked_json
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.tasks import distillation, noise
from voxstill.tasks.ctc import CtcTask
from voxstill.tasks.data import Corpus
from voxstill.tasks.seq2seq import Seq2SeqTask
from voxstill.tasks.transducer import TransducerTask
from voxstill.text import tokenizer
from voxstill.text.normalize import normalizer
from voxstill.text.pretrained import WhisperTokenizer
from voxstill.text.tokenizer import Tokenizer, Vocabulary
from voxstill.training.experiment import describe, save_model
from voxstill.training.setup import TrainingSetup
from voxstill.training.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from transformers import PreTrainedModel

KINDS: dict[students.Kind, Any] = {
    "ctc": CtcTask,
    "rnnt": TransducerTask,
    "tdt": TransducerTask,
    "seq2seq": Seq2SeqTask,
}
VOCABULARY = "vocabulary.json"
"""The name of the vocabulary beside the index of the shards."""
_MANY_TO_A_FRAME_MS = 40  # CTC needs a frame for each piece, and people say up to 15 characters a second


def build(fabric: Fabric, cfg: Config, run: RunDir, store: Store, prefix: str) -> TrainingSetup:
    """Build a student that learns to write what the labels say."""
    with fabric.rank_zero_first():  # which makes vocabulary and index, for the others to open
        frontend = frontend_of(cfg, noise.load(cfg.augment))
        corpus, vocabulary = corpus_of(
            cfg, run, store, prefix, frontend, rank=fabric.global_rank, ranks=fabric.world_size
        )
    counted = f", {len(vocabulary.pieces)} {vocabulary.unit}s"
    first = corpus.plan(0, ascending=True)
    log.info("train: %s", describe(first.statistics(), corpus.hours_by_dataset(first), counted))
    model, task = _student_and_task(cfg, vocabulary, frontend)

    def save(run: RunDir, weights: dict[str, torch.Tensor]) -> None:
        save_student(run, model, vocabulary, frontend, weights)

    return TrainingSetup(
        model=model,
        task=task,
        data=corpus,
        about=f"`{cfg.student.checkpoint}` as a student" if cfg.student.checkpoint else f"{cfg.student.size} student",
        notes={"vocabulary": len(vocabulary.pieces)},
        error="dev_wer",
        save=save,
        frozen=freezing.freeze(model, cfg.student.freeze_layers, cfg.train.unfreeze_share),
    )


def _student_and_task(cfg: Config, vocabulary: Tokenizer, frontend: Frontend) -> tuple[Any, Task]:
    """The student before its first step, with what its training alone needs, and its task."""
    model, teacher = new_student(cfg, vocabulary), distillation.load(cfg, vocabulary)
    if teacher is not None:
        distillation.attach(model, teacher, cfg.seed)
    return model, KINDS[cfg.student.kind](vocabulary, cfg.train, cfg.augment, frontend, teacher)


def corpus_of(
    cfg: Config, run: RunDir, store: Store, prefix: str, frontend: Frontend, *, rank: int = 0, ranks: int = 1
) -> tuple[Corpus, Tokenizer]:
    """Open the shards below `prefix` as one rank learns from them, and what their labels are spelled with.

    Both are written below `run` where they are not there yet.
    """
    normalize: Callable[[str], str] = normalizer(cfg.student.text)
    vocabulary = vocabulary_of(run, Corpus.texts(store, prefix, "train", normalize), cfg, frontend)
    corpus = Corpus(
        store,
        prefix,
        run.corpus,
        tokenizer=vocabulary,
        normalize=normalize,
        frontend=frontend,
        cfg=cfg,
        rank=rank,
        ranks=ranks,
    )
    return corpus, vocabulary


def frontend_of(cfg: Config, noise_bank: NoiseBank | None) -> Frontend:
    """Make the frontend of the student, that of its checkpoint where it has one."""
    checkpoint = cfg.student.checkpoint
    config = checkpoints.read_config(checkpoint) if checkpoint else None
    student = cfg.student
    return checkpoints.make_frontend(
        config, cfg.augment, noise_bank, checkpoint, student.normalization, is_streaming=student.streaming
    )


def new_student(cfg: Config, vocabulary: Tokenizer) -> Any:
    """The student before its first step."""
    student, num_pieces = cfg.student, len(vocabulary.pieces)
    wanted: dict[str, Any] = {"seed": cfg.seed, "kind": student.kind}
    if student.checkpoint is None:
        wanted |= {"normalization": student.normalization or "utterance", "streaming": student.streaming}
        return students.build(student.size, num_pieces, dropout=student.dropout or 0.0, **wanted)
    try:
        keep_vocabulary = Vocabulary.load(Path(student.checkpoint)) == vocabulary
    except DataError:
        keep_vocabulary = student.units == "checkpoint"
    wanted |= {
        "keep_vocabulary": keep_vocabulary,
        "dropout": student.dropout,
        "freeze_convolutions": student.freeze_features,
        "encoder_layers": student.encoder_layers,
        "decoder_layers": student.decoder_layers,
    }
    return checkpoints.from_checkpoint(student.checkpoint, num_pieces, **wanted)


def new_vocabulary(texts: Iterable[str], student: Student, frontend: Frontend) -> Vocabulary:
    """What the student spells with: made of the texts, or taken from its checkpoint, and then no text is read."""
    if student.units == "checkpoint":
        return tokenizer.from_checkpoint(student.checkpoint or "")
    fallback: Any = "character" if frontend.frame_ms < _MANY_TO_A_FRAME_MS else "bpe"
    wanted: dict[str, Any] = {"bpe_pieces": student.bpe_pieces, "fallback": fallback}
    return tokenizer.train(texts, student.units, student.max_words, **wanted)


def vocabulary_of(run: RunDir, texts: Iterable[str], cfg: Config, frontend: Frontend) -> Tokenizer:
    """The vocabulary of the texts; what another start of this training made is taken, and no text is read."""
    if cfg.student.kind == "seq2seq":
        checkpoint = cfg.student.checkpoint or ""
        return WhisperTokenizer(checkpoint, cfg.student.language, checkpoints.read_config(checkpoint).vocab_size)
    path = run.corpus / VOCABULARY
    if path.exists():
        return _kept_vocabulary(path)
    distill = cfg.train.distill
    if distill.checkpoint is not None and distill.weight and cfg.student.units == "auto":
        vocabulary = tokenizer.from_checkpoint(str(model_folder(distill.checkpoint)))
    else:
        vocabulary = new_vocabulary(texts, cfg.student, frontend)
    run.corpus.mkdir(parents=True, exist_ok=True)
    kept = {"unit": vocabulary.unit, "pieces": vocabulary.pieces, "merges": vocabulary.merges}
    write_atomically(path, checked_json.encode(kept))
    return vocabulary


def _kept_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary that another start of a training made; DataError if the file is not what was written."""
    try:
        kept: Any = checked_json.decode(path.read_bytes(), str(path))
        return Vocabulary(kept["unit"], tuple(kept["pieces"]), tuple((left, right) for left, right in kept["merges"]))
    except (DataError, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"`{path}` contains no vocabulary of a student",
            code="checkpoint-broken",
            why=error.why if isinstance(error, DataError) else first_line(error),
            fix="restore it from a copy: checkpoints are of its pieces; if there are none, remove it and train again",
        ) from None


def _own_vocabulary(cfg: Config, run: RunDir, frontend: Frontend) -> Tokenizer:
    """The vocabulary of an experiment: of its finished student, or what its training made before the first step."""
    if cfg.student.kind == "seq2seq":
        return vocabulary_of(run, (), cfg, frontend)
    return Vocabulary.load(run.model) if run.model.is_dir() else _kept_vocabulary(run.corpus / VOCABULARY)


def save_student(
    run: RunDir, model: PreTrainedModel, vocabulary: Tokenizer, frontend: Frontend, weights: dict[str, torch.Tensor]
) -> None:
    """The Hugging Face folder of the student, whole or absent, without what its training alone needs."""
    own = {name: value for name, value in weights.items() if not name.startswith(f"{students.TRAINING_ONLY}.")}

    def rest(folder: Path) -> None:
        kind = "streaming" if students.is_streaming(model) else students.student_kind(model)
        vocabulary.save(folder, frontend.extractor, kind)

    save_model(run, model, own, rest)


def open_corpus(cfg: Config, run: RunDir, store: Store, prefix: str) -> Corpus:
    """Open the shards as a training in one process learns from them."""
    return corpus_of(cfg, run, store, prefix, frontend_of(cfg, None))[0]


def rebuild(cfg: Config, run: RunDir) -> tuple[Frontend, Any, Task]:
    """Build the frontend, the model before its first step, and the task of an experiment."""
    frontend = frontend_of(cfg, noise.load(cfg.augment))
    vocabulary = _own_vocabulary(cfg, run, frontend)
    return frontend, *_student_and_task(cfg, vocabulary, frontend)


def save(cfg: Config, run: RunDir, weights: dict[str, torch.Tensor], output: RunDir) -> None:
    """Write the student of an experiment with other weights, those of a checkpoint."""
    frontend = frontend_of(cfg, None)
    vocabulary = _own_vocabulary(cfg, run, frontend)
    save_student(output, new_student(cfg, vocabulary), vocabulary, frontend, weights)
