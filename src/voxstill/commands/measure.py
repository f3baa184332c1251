"""evaluate and report: figures of a recogniser on utterances whose words a human wrote down."""

from __future__ import annotations

import bisect
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxstill import config, tables, workdir
from voxstill.commands import score
from voxstill.commands.prepare import utterances_recipe
from voxstill.config import Config
from voxstill.errors import DataError, VoxstillError
from voxstill.factory import extract, label
from voxstill.monitor import Progress, log
from voxstill.records import ErrorCounts, Label, Utterance
from voxstill.score import checks, words
from voxstill.store import Store, read_uri
from voxstill.teachers.teacher import Clip, Teacher
from voxstill.teachers.transformers import TransformersOptions, TransformersTeacher
from voxstill.text.normalize import normalizer

DURATION_EDGES_MS = (1000, 2000, 5000, 10_000, 20_000)
DURATIONS = ("under 1 s", "1 to 2 s", "2 to 5 s", "5 to 10 s", "10 to 20 s", "over 20 s")
REFERENCES, HYPOTHESES = "{split}.ref.jsonl", "{split}.hyp.jsonl"
"""What was said and what was heard, in the folder of an experiment's evaluation."""
SPEED_CLIPS_MS = 120_000
"""Audio on which two recognisers are timed side by side."""
SPEED_ROUNDS, SPEED_S = 3, 30.0
"""So often, or until so much time has passed: a slow teacher is timed once."""


def of_split(cfg: Config) -> list[Utterance]:
    """The utterances of `evaluate.split`."""
    work = Store(cfg.work)
    source = workdir.finished(work, "utterances", utterances_recipe(cfg))
    rows = tables.read(work, workdir.prefix("utterances", source["recipe"]), Utterance)
    return [each for each in rows if each.split == cfg.evaluate.split]


def references(cfg: Config) -> list[Utterance]:
    """The utterances of `evaluate.split` with their human words; DataError where nobody wrote any down."""
    rows = of_split(cfg)
    texts = hidden_texts(cfg)
    known = [with_text(each, texts) for each in rows]
    # in the order of ids: that of the table depends on where the files lie, and the intervals would with it
    judged = sorted((each for each in known if each.text is not None), key=lambda each: each.id)
    if not judged:
        raise DataError(
            f"nothing can be judged on the split `{cfg.evaluate.split}`",
            why=f"{len(rows)} utterances are in it, and none has a human text",
            fix="give texts in the manifest or by `evaluate.texts`, or another `evaluate.split`",
        )
    if len(judged) < len(rows):
        log.info("evaluate: %d of %d utterances have a human text", len(judged), len(rows))
    return judged


def recogniser(cfg: Config, model: str) -> TransformersTeacher:
    """A student as something that hears, decoded as `decode` says; ConfigError where the folder holds none."""
    tree = {"model": model, "dtype": "float32"}  # the same figures on every machine
    return TransformersTeacher(config.validated(TransformersOptions, tree, prefix="teacher."), cfg.decode)


def hidden_texts(cfg: Config) -> dict[str, str]:
    """Human texts by utterance id from `evaluate.texts`, which no other step reads."""
    if cfg.evaluate.texts is None:
        return {}
    rows = (json.loads(line) for line in read_uri(cfg.evaluate.texts).decode().splitlines() if line.strip())
    return {row["id"]: row["text"] for row in rows}


def with_text(utterance: Utterance, texts: Mapping[str, str]) -> Utterance:
    """The utterance with the text of `texts`, where it has none of its own."""
    import dataclasses

    return dataclasses.replace(
        utterance, text=utterance.text if utterance.text is not None else texts.get(utterance.id)
    )


def evaluate(cfg: Config, target: str) -> dict[str, Any]:
    """Error rates of a student on one split, with intervals, by speaker and data set; speed on one thread."""
    student = recogniser(cfg, target)
    judged = references(cfg)
    student.open()
    clips, unread = read_clips(cfg, judged)
    warnings = unread_told(unread, len(judged))
    heard_s = 0.0
    texts: dict[str, str] = {}
    with Progress("evaluate", len(clips), "utterances") as bar:
        for start in range(0, len(clips), 64):
            some = clips[start : start + 64]
            begin = time.perf_counter()
            answers = student.hear(some)
            heard_s += time.perf_counter() - begin
            texts |= {clip.utterance.id: answer.text for clip, answer in zip(some, answers, strict=True)}
            bar.advance(len(some))
    figures = error_figures(cfg, judged, texts)
    audio_s = sum(clip.utterance.duration_ms for clip in clips) / 1000
    return {
        "model": target,
        "split": cfg.evaluate.split,
        **figures,
        "warnings": [*warnings, *figures["warnings"]],
        "rtfx": audio_s / max(heard_s, 1e-9),
        "parameters": student.num_parameters(),
        "unread": unread,
        "decode": cfg.decode.model_dump(),
        "hypotheses": texts,
    }


def evaluate_teacher(cfg: Config) -> dict[str, Any]:
    """Error rates of the teacher's labels on the same split; nothing is labelled again."""
    judged = references(cfg)
    work = Store(cfg.work)
    found = workdir.finished(work, "labels", label.task(cfg.teacher, work).recipe)
    wanted = {each.id for each in judged}
    rows = tables.read(work, workdir.prefix("labels", found["recipe"]), Label)
    texts = {row.utterance_id: row.text for row in rows if row.utterance_id in wanted}
    return {
        "teacher": found["teacher"],
        "split": cfg.evaluate.split,
        **error_figures(cfg, judged, texts),
        "hypotheses": texts,
    }


def error_figures(cfg: Config, judged: Sequence[Utterance], texts: Mapping[str, str]) -> dict[str, Any]:
    """WER and CER of hypotheses by utterance id; an utterance without one counts as if nothing was said."""
    alike = normalizer(cfg.evaluate.normalizer)
    pairs = [(alike(each.text or ""), alike(texts.get(each.id, ""))) for each in judged]
    rows = [words.score(each.id, *pair) for each, pair in zip(judged, pairs, strict=True)]
    speakers = {each.id: each.speaker for each in judged}
    datasets = {each.id: each.dataset for each in judged}
    dialects = {each.id: each.dialect for each in judged}
    durations = {each.id: DURATIONS[bisect.bisect(DURATION_EDGES_MS, each.duration_ms)] for each in judged}
    if not any(row.words.reference for row in rows):
        raise DataError(
            "the references hold no words",
            why="after normalising, every human text is empty",
            fix="look at the texts, or set `evaluate.normalizer: none`",
        )
    silence = checks.silence((row.words, each.duration_ms) for row, each in zip(rows, judged, strict=True))
    by_duration = words.by(rows, lambda row: durations[row.id])
    return {
        **score.figures(rows, speakers, cfg),
        "words_per_hour_of_silence": silence.words_per_hour,
        "by_speaker": score.rates(words.by(rows, lambda row: speakers[row.id])),
        "by_dataset": score.rates(words.by(rows, lambda row: datasets[row.id])),
        "by_dialect": score.rates(words.by(rows, lambda row: dialects[row.id])),
        "by_duration": score.rates({name: by_duration[name] for name in DURATIONS if name in by_duration}),
        "warnings": checks.of_words(pairs, ErrorCounts.sum(row.words for row in rows)),
        **score.stamp(cfg.evaluate.normalizer, words.versions()),
    }


def read_clips(cfg: Config, utterances: Sequence[Utterance]) -> tuple[list[Clip], dict[str, str]]:
    """The audio of each utterance, and the reasons of those that cannot be read."""
    found: list[Clip] = []
    unread: dict[str, str] = {}
    for each, samples_T in extract.samples(utterances, extract.reading(cfg).cache):
        if isinstance(samples_T, VoxstillError):
            unread[each.id] = samples_T.what
        else:
            found.append(Clip(utterance=each, samples_T=samples_T))
    return found, unread


def unread_told(unread: Mapping[str, str], num: int) -> list[str]:
    """A sentence, which the log has, too, where some of `num` utterances could not be read; DataError where none
    could."""
    if not unread:
        return []
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in Counter(unread.values()).most_common(3))
    if len(unread) == num:
        raise DataError(
            f"not one of the {num:,} utterances to judge can be read",
            why=reasons,
            fix="look whether the audio is where it was; where it has changed, index it into another work folder",
        )
    told = f"{len(unread):,} of {num:,} utterances could not be read ({reasons}): nothing was heard in them"
    log.warning("evaluate: %s", told)
    return [told]


def speeds(recognisers: Mapping[str, Teacher], clips: Sequence[Clip]) -> dict[str, float]:
    """Audio-seconds a CPU-second of each recogniser on the same clips, in turn, in this one process: medians."""
    some: list[Clip] = []
    total_ms = 0
    for clip in clips:
        if total_ms < SPEED_CLIPS_MS:
            some.append(clip)
            total_ms += clip.utterance.duration_ms
    took: dict[str, list[float]] = {name: [] for name in recognisers}
    begun = time.perf_counter()
    for number in range(SPEED_ROUNDS):
        if number and time.perf_counter() - begun > SPEED_S:
            break
        for name, recogniser in recognisers.items():
            start = time.process_time()
            recogniser.hear(some)
            took[name].append(time.process_time() - start)
    return {name: total_ms / 1000 / max(sorted(each)[len(each) // 2], 1e-9) for name, each in took.items()}


def write_figures(folder: Path, figures: Mapping[str, Any], judged: Sequence[Utterance]) -> None:
    """Keep the figures of one split beside the experiment, and what was said and heard in forms that can be scored."""
    folder.mkdir(parents=True, exist_ok=True)
    split, store = figures["split"], Store(str(folder))
    said = [
        {"id": each.id, "text": each.text, "speaker": each.speaker, "start_ms": each.start_ms, "end_ms": each.end_ms}
        for each in judged
    ]
    heard = [{"id": each.id, "text": figures["hypotheses"].get(each.id, "")} for each in judged]
    for name, rows in ((REFERENCES, said), (HYPOTHESES, heard)):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        store.replace(name.format(split=split), "".join(lines).encode())
    told = {key: value for key, value in figures.items() if key != "hypotheses"}
    store.replace(f"{split}.json", (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode())
