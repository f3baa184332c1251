"""compare --report: the page that compares two recognisers, with every utterance of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxstill.core import config
from voxstill.core.config import Config
from voxstill.evaluation.report import html
from voxstill.evaluation.score import duration_ms
from voxstill.pipeline.compare import DOUBTFUL, Sides, experiment_of
from voxstill.pipeline.report_parts import Aligned, confusions, entry, sound_of
from voxstill.scoring import words
from voxstill.storage.redaction import redact_uri
from voxstill.text.normalize import words as split_words

COMPARED: tuple[html.Role, html.Role] = ("first", "second")


def comparison(cfg: Config, both: Sides, figures: Mapping[str, Any]) -> str:
    """Render the page that compares two recognisers: the figures of `compare.runs`, and every utterance of both."""
    pairs: dict[html.Role, dict[str, Aligned]] = {
        role: {id_: words.align(split_words(text), split_words(texts.get(id_, ""))) for id_, text in both.texts.items()}
        for role, texts in zip(COMPARED, both.hypotheses, strict=True)
    }
    runs = dict(zip(COMPARED, figures["runs"], strict=True))
    facts: html.Facts = {
        "title": "voxstill: comparison of two systems",
        "about": " and ".join(map(redact_uri, both.runs)),
        "systems": [
            {
                "role": role,
                "name": redact_uri(row["run"]),
                "wer": row["wer"],
                "interval": row["interval"],
                "cer": row["cer"],
            }
            for role, row in runs.items()
        ],
        "judged": {
            "split": both.split,
            "utterances": figures["utterances"],
            "words": runs["first"]["words"],
            "drawn": figures["blocks_are"],
            "resamples": cfg.evaluate.bootstrap_draws,
        },
        "paired": {
            "difference": figures["difference"],
            "interval": figures["interval"],
            "p": figures["p"],
            "surely": figures["p"] <= DOUBTFUL,
        },
        "breakdowns": _by_speaker(runs),
        "confusions": confusions(pairs),
        "worst": differing(cfg, both, pairs),
        "utterances": [
            {
                "id": id_,
                "speaker": segment.speaker,
                "dataset": None,
                "duration_ms": duration_ms(segment),
                "heard": {role: aligned[id_][1] for role, aligned in pairs.items()},
            }
            for id_, segment in both.references.items()
        ],
    }
    return html.render(facts)


def _by_speaker(runs: Mapping[html.Role, Mapping[str, Any]]) -> list[html.Breakdown]:
    """The error rates of two recognisers by speaker; nothing if fewer than two speakers are known."""
    by_speaker = runs["first"]["by_speaker"]
    if len(by_speaker) < 2:
        return []
    groups: list[html.Group] = [
        {
            "name": name,
            "words": row["words"],
            "wer": {role: run["by_speaker"][name]["wer"] for role, run in runs.items()},
        }
        for name, row in by_speaker.items()
    ]
    return [{"by": "speaker", "groups": groups}]


def differing(cfg: Config, both: Sides, pairs: Mapping[html.Role, Mapping[str, Aligned]]) -> list[html.Utterance]:
    """The utterances whose numbers of errors differ most, with their audio where the WORK can be read."""
    first, second = pairs["first"], pairs["second"]
    unlike = [id_ for id_ in both.references if first[id_][1] != second[id_][1]]
    unlike.sort(key=lambda id_: (-abs(first[id_][0].errors - second[id_][0].errors), id_))
    chosen = unlike[: cfg.evaluate.worst]
    audio = next((clips for run in both.runs if (clips := _sound_of(run, chosen))), {})
    return [entry(id_, [both.references[id_].speaker], pairs, audio) for id_ in chosen]


def _sound_of(run: str, ids: Sequence[str]) -> dict[str, bytes]:
    """Read audio of utterances from the WORK of an experiment; empty if it cannot be read."""
    own = experiment_of(Path(run))
    return {} if own is None else sound_of(config.load(str(own.config)), ids)
