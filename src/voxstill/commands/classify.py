"""train and evaluate where classes or speakers are told apart: by what is known of utterances, or by their labels."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxstill.commands import learn, measure, prepare, score
from voxstill.commands.learn import Lesson
from voxstill.config import Config
from voxstill.errors import DataError
from voxstill.monitor import Progress, log
from voxstill.nn import classifiers, freezing, students
from voxstill.nn.hearing import Hearing
from voxstill.records import ErrorCounts, Utterance
from voxstill.report import classes as report
from voxstill.rundir import RunDir
from voxstill.score import classes as scoring
from voxstill.score import stats, verification
from voxstill.score.words import Scored
from voxstill.store import Store
from voxstill.tasks import classify
from voxstill.teachers import checkpoint
from voxstill.teachers.transformers import batches_by_length, model_folder
from voxstill.text.normalize import normalizer
from voxstill.train import sounds
from voxstill.train.classified import Classified

_BATCH_MS = 30_000
_NAMES = "classes.json"


def column_of(cfg: Config) -> str:
    """What of an utterance names its class."""
    return "speaker" if cfg.student.task == "speakers" else cfg.student.target


def shards_of(cfg: Config) -> dict[str, Any]:
    """Labelled shards where a label is the class, else those that are there, or new ones without labels."""
    return prepare.finished_shards(cfg) if column_of(cfg) == "text" else prepare.heard_shards(cfg)


def lesson(fabric: Any, cfg: Config, run: RunDir, store: Store, prefix: str) -> Lesson:
    """A student that learns which class each utterance is of; DataError where all are of one."""
    column, speakers = column_of(cfg), cfg.student.task == "speakers"
    alike = normalizer(cfg.student.text) if column == "text" else str
    with fabric.rank_zero_first():  # which makes names and index, for the others to open
        hearing = hearing_of(cfg)
        names = _names(run, store, prefix, cfg)
        corpus = Classified(
            *(store, prefix, run.corpus, names, alike, hearing, cfg),
            rank=fabric.global_rank,
            ranks=fabric.world_size,
            column=column,
        )
    told = f", {len(names)} {'speakers' if speakers else f'classes by {column}'}"
    log.info("train: %s", learn.describe(corpus.plan(0, ascending=True).statistics(), told))
    model = _new(cfg, names)

    def save(run: RunDir, weights: dict[str, torch.Tensor]) -> None:
        def rest(folder: Path) -> None:
            text = json.dumps(dict(hearing.extractor), indent=2) + "\n"
            (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")

        learn.save_model(run, model, weights, rest)

    about = f"`{cfg.student.checkpoint}`" if cfg.student.checkpoint else f"a {cfg.student.size} FastConformer"
    return Lesson(
        model,
        classify.ClassifyTask(names, hearing, speakers=speakers),
        corpus,
        f"{about} that tells {'speakers' if speakers else 'classes'} apart",
        notes={"classes": len(names)},
        error=f"dev_{corpus.measure}",
        save=save,
        frozen=freezing.freeze(model, cfg.student.freeze_layers, cfg.train.unfreeze_share),
    )


def again(run: RunDir, cfg: Config) -> tuple[Hearing, Any, classify.ClassifyTask]:
    """How the student of an experiment hears, itself before its first step, and its task."""
    finished = run.model.is_dir()
    names = classifiers.names_of(classifiers.load(run.model)) if finished else _found(run)
    hearing = hearing_of(cfg)
    task = classify.ClassifyTask(names, hearing, speakers=cfg.student.task == "speakers")
    return hearing, _new(cfg, names), task


def hearing_of(cfg: Config) -> Hearing:
    """How the student hears, from its checkpoint where it has one."""
    start = cfg.student.checkpoint
    config = classifiers.described(start) if start else None
    return students.hearing(config, cfg.augment, sounds.load(cfg.augment), start)


def _names(run: RunDir, store: Store, prefix: str, cfg: Config) -> list[str]:
    """The classes of the train split, sorted; those that another start of this training found."""
    path, column = run.corpus / _NAMES, column_of(cfg)
    if path.exists():
        return _found(run)
    alike = normalizer(cfg.student.text) if column == "text" else str
    names = sorted({each for each in Classified.texts(store, prefix, "train", alike, column) if each})
    if len(names) < 2:
        raise DataError(
            f"there is nothing to tell apart: the train split has {len(names)} classes by `{column}`",
            why=f"all are `{names[0]}`" if names else f"no utterance has a {column}",
            fix="set `student.target` to what names the classes; what a manifest may say is in docs/sources.md",
        )
    run.corpus.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(names, ensure_ascii=False))
    draft.replace(path)
    return names


def _found(run: RunDir) -> list[str]:
    names: list[str] = json.loads((run.corpus / _NAMES).read_text())
    return names


def _new(cfg: Config, names: Sequence[str]) -> Any:
    return classifiers.new(cfg.student, names, cfg.seed, {"target": column_of(cfg), "text": cfg.student.text})


def is_classifier(target: str) -> bool:
    """Whether an experiment or a folder holds a student that tells classes or speakers apart."""
    from transformers import AutoConfig

    if checkpoint.on_hub(target):
        return False
    try:
        config = AutoConfig.from_pretrained(model_folder(target), local_files_only=True)
    except (OSError, ValueError):
        return False
    return classifiers.task_of(config) is not None


def evaluate(cfg: Config, target: str) -> dict[str, Any]:
    """How well a student tells the classes or the speakers of one split apart; speed on one thread."""
    folder = model_folder(target)
    model = classifiers.load(folder)
    config = model.config
    judged = _judged(cfg, config.target, config.text)
    clips, unread = measure.read_clips(cfg, judged)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hearing = students.hearing(config, cfg.augment, None, str(folder))
    hearing.move(device)
    model.eval().to(device)
    names, heard_s = classifiers.names_of(model), 0.0
    said: dict[str, str] = {}
    embedded: dict[str, Any] = {}
    with Progress("evaluate", len(clips), "utterances") as bar:
        lengths = [len(clip.samples_T) for clip in clips]
        heard = [num if hearing.frames(num) else 0 for num in lengths]
        unread |= {clip.utterance.id: "too short" for clip, num in zip(clips, heard, strict=True) if not num}
        for members in batches_by_length(heard, _BATCH_MS):
            some = [torch.from_numpy(clips[i].samples_T) for i in members]
            ids = [clips[i].utterance.id for i in members]
            begin = time.perf_counter()
            with torch.inference_mode():
                audio_BT = torch.nn.utils.rnn.pad_sequence(some, batch_first=True).to(device)
                len_B = torch.tensor([len(each) for each in some], device=device)
                found, embedding_BE = classify.named(model, hearing, names, audio_BT, len_B, ids)
            heard_s += time.perf_counter() - begin
            said |= {each.id: each.text for each in found}
            if embedding_BE is not None:
                embedded |= dict(zip(ids, embedding_BE.numpy(), strict=True))
            bar.advance(len(members))
    warnings = measure.unread_told(unread, len(judged))
    rows = [each for each in judged if each.id in said]
    audio_s = sum(each.duration_ms for each in rows) / 1000
    return {
        "model": target,
        "split": cfg.evaluate.split,
        "task": classifiers.task_of(config),
        "target": config.target,
        "utterances": len(rows),
        **(_verified(rows, embedded, cfg) if embedded else {}),
        **_told_apart(rows, said, set(names), cfg),
        "rtfx": audio_s / max(heard_s, 1e-9),
        "parameters": students.num_parameters(model),
        "unread": unread,
        "warnings": warnings,
        **score.stamp(config.text if config.target == "text" else "none", {}),
    }


def _judged(cfg: Config, column: str, text: str) -> list[Utterance]:
    """The utterances of `evaluate.split` with their class as the text; DataError where none has any."""
    rows = measure.of_split(cfg)
    if column == "text":
        texts, alike = measure.hidden_texts(cfg), normalizer(text)
        found = [measure.with_text(each, texts) for each in rows]
        found = [dataclasses.replace(each, text=alike(each.text)) for each in found if each.text]
    else:
        found = [dataclasses.replace(each, text=getattr(each, column)) for each in rows]
    judged = sorted((each for each in found if each.text), key=lambda each: each.id)
    if not judged:
        raise DataError(
            f"nothing can be judged on the split `{cfg.evaluate.split}`",
            why=f"{len(rows)} utterances are in it, and none has a {column}",
            fix="name another split with `--on`, or say it in the manifest",
        )
    if len(judged) < len(rows):
        log.info("evaluate: %d of %d utterances have a %s", len(judged), len(rows), column)
    return judged


def _told_apart(rows: Sequence[Utterance], said: Mapping[str, str], names: set[str], cfg: Config) -> dict[str, Any]:
    """Accuracy and its kin over the classes that were learnt, and how many utterances are of others."""
    known = [each for each in rows if each.text in names]
    pairs = [(each.text or "", said[each.id]) for each in known]
    strange = sorted({each.text or "" for each in rows} - names)
    if strange and (known or cfg.student.task != "speakers"):
        log.warning(
            "evaluate: %d of %d utterances are of classes never learnt (%s): not judged by class",
            *(len(rows) - len(known), len(rows), ", ".join(strange[:5])),
        )
    found = scoring.score(pairs)
    counts = [ErrorCounts(hits=int(ref == hyp), substitutions=int(ref != hyp)) for ref, hyp in pairs]
    scored = [Scored(id=each.id, words=one, characters=one) for each, one in zip(known, counts, strict=True)]
    blocks = stats.blocks(scored, {each.id: each.speaker for each in known})
    errors = stats.interval(blocks.counts, cfg.evaluate.bootstrap_draws, cfg.seed) if known else None
    return {
        "accuracy": found.accuracy,
        "interval": None if errors is None else (1 - errors[1], 1 - errors[0]),
        "interval_over": blocks.unit,
        "macro_f1": found.macro_f1,
        "unknown": len(rows) - len(known),
        "classes": {name: dataclasses.asdict(each) for name, each in found.per_class.items()},
        "confusion": found.confusion,
    }


def _verified(rows: Sequence[Utterance], embedded: Mapping[str, Any], cfg: Config) -> dict[str, Any]:
    """Errors of telling by two utterances whether one speaker says both; None where there is one speaker alone."""
    embedding_ND = np.stack([embedded[each.id] for each in rows])
    score_N, same_N = classify.compared(embedding_ND, [each.text for each in rows], cfg.seed)
    if same_N.all() or not same_N.any():
        log.warning("evaluate: the split has no trials of both kinds: it takes two speakers, one of them heard twice")
        return {"eer": None, "min_dcf": None, "trials": len(same_N)}
    return {
        "eer": verification.eer(score_N, same_N),
        "min_dcf": verification.min_dcf(score_N, same_N),
        "trials": len(same_N),
    }


def write_figures(folder: Path, figures: Mapping[str, Any]) -> None:
    """Keep the figures of one split beside the experiment, and a page that shows what was taken for what."""
    folder.mkdir(parents=True, exist_ok=True)
    split, store = figures["split"], Store(str(folder))
    store.replace(f"{split}.json", (json.dumps(figures, indent=1, ensure_ascii=False) + "\n").encode())
    page = report.Figures(
        title=f"{figures['target']}: {figures['model']}",
        split=split,
        utterances=figures["utterances"],
        accuracy=figures["accuracy"],
        interval=figures["interval"],
        interval_over=figures["interval_over"],
        macro_f1=figures["macro_f1"],
        per_class=figures["classes"],
        confusion=figures["confusion"],
    )
    for name in ("eer", "min_dcf", "trials"):
        if name in figures:
            page[name] = figures[name]
    store.replace(f"{split}.html", report.page(page).encode())
