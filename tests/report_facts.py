"""Facts of a report as of a real run, for the tests of its pages."""

from __future__ import annotations

import io
import math
import random
import struct
import wave

from voxstill.core.version import __version__
from voxstill.evaluation.report.html import Comparison, EvaluatedUtterance, Facts, Group, Role
from voxstill.filtering.rules import RULES
from voxstill.scoring.words import align

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def tone() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(i / 5))) for i in range(24_000)))
    return buffer.getvalue()


def misheard(words: list[str], share: float, rng: random.Random) -> list[str]:
    labels = [rng.choice(DIGITS) if rng.random() < share else word for word in words]
    return [word for word in labels for _ in range(rng.choices([0, 1, 2], [share / 4, 1, share / 4])[0])]


def compared(i: int, rng: random.Random) -> EvaluatedUtterance:
    words = rng.choices(DIGITS, k=rng.randint(1, 9))
    shares: tuple[tuple[Role, float], ...] = (("teacher", 0.5), ("student", 0.2))
    return {
        "id": f"jackson-{i:06}",
        "speaker": rng.choice(["jackson", "theo", None]),
        "dataset": rng.choice(["clean", "20 dB"]),
        "duration_ms": 400 * len(words),
        "heard": {role: align(words, misheard(words, share, rng))[1] for role, share in shares},
    }


def example() -> Facts:
    rng = random.Random(3)
    dropped = {"failed": 2, "too_fast": 31, "repeated": 12, "low_confidence": 951}

    def utterance(i: int) -> dict[str, object]:
        words = rng.choices(DIGITS, k=7)
        alignments = [
            (role, align(words, misheard(words, share, rng))) for role, share in (("teacher", 0.5), ("student", 0.4))
        ]
        return {
            "id": f"jackson-7f3a{i}",
            "about": "jackson, 10 dB, 3.4 s",
            "audio": tone(),
            "heard": [{"role": role, "wer": counts.rate, "pairs": pairs} for role, (counts, pairs) in alignments],
        }

    def groups(names: list[str]) -> list[Group]:
        return [
            {
                "name": name,
                "words": rng.randint(300, 1200),
                "wer": {"teacher": rng.uniform(0.15, 0.7), "student": rng.uniform(0.05, 0.2)},
            }
            for name in names
        ]

    training = [
        {"step": 5 * i, "loss": 0.25 + 4 * math.exp(-i / 40) + rng.uniform(0, 0.2), "lr": 1e-3} for i in range(300)
    ]
    validation = [
        {"step": 150 * i, "split": "dev", "wer": 0.09 + 0.8 * math.exp(-i / 2), "loss": 0.4} for i in range(1, 11)
    ]
    return {
        "title": "A student of 1.6 million parameters for spoken commands",
        "about": "demo, 6 December 2025. Learnt from 1,404 pseudo-labels without one human transcript.",
        "results": [
            {
                "recogniser": "model",
                "corpus": "commands",
                "split": "test",
                "decoding": decoding,
                "normalizer": "basic",
                "utterances": 480,
                "rate": ("wer", wer),
                "interval": (wer - 0.02, wer + 0.02),
            }
            for decoding, wer in (("greedy", 0.093), ("beam-16-lm", 0.071))
        ],
        "systems": [
            {
                "role": "teacher",
                "name": "pocketsphinx@5.1.1",
                "wer": 0.366,
                "interval": (0.301, 0.428),
                "cer": 0.291,
                "parameters": None,
                "rtfx": 48.2,
            },
            {
                "role": "student",
                "name": "FastConformer-CTC tiny",
                "wer": 0.094,
                "interval": (0.071, 0.122),
                "cer": 0.061,
                "parameters": 1_640_000,
                "rtfx": 487.0,
            },
        ],
        "judged": {"split": "test", "utterances": 480, "words": 2613, "drawn": "speakers", "resamples": 1000},
        "grammar": {
            "utterances": 100,
            "of": 480,
            "rows": [
                {"system": system, "grammar": grammar, "wer": wer, "cer": wer, "interval": None, "rtfx": 0.9}
                for system, grammar, wer in (
                    ("teacher", True, 0.366),
                    ("teacher", False, 0.985),
                    ("student", True, 0.094),
                    ("student", False, 0.113),
                )
            ],
        },
        "steps": [
            {"name": "index", "seconds": 1.9, "figures": {"recordings": 3120, "damaged": 0, "hours": 1.82}},
            {"name": "label", "seconds": 88.0, "figures": {"labels": 2400, "failed": 2, "rtfx": 48.2}},
            {"name": "filter", "seconds": 0.8, "figures": {"kept": 0.585, "wer_before": 0.389, "wer_after": 0.191}},
            {"name": "shard", "seconds": 3.1, "figures": {"shards": 1, "utterances": 1404, "hours": 0.62}},
            {"name": "train", "seconds": 151.4, "figures": {"steps": 1500, "loss": 0.31, "padding": 0.06}},
            {"name": "evaluate", "seconds": 9.7, "figures": {"wer": 0.094, "cer": 0.061}},
        ],
        "funnel": {
            "labels": 2400,
            "rules": [
                {
                    "name": name,
                    "why": why,
                    "dropped": dropped.get(name, 0),
                    "examples": [
                        {"id": f"{name}-{i}", "about": "jackson", "text": "seven"[: 5 * i], "audio": [None, tone()][i]}
                        for i in range(min(dropped.get(name, 0), 2))
                    ],
                }
                for name, why in ((rule.name, rule.why) for rule in RULES)
            ],
            "curve": [(0.5, 0.02), (0.75, 0.08), (1.0, 0.16)],
        },
        "metrics": [*training, *validation],
        "breakdowns": [
            {"by": "speaker", "groups": groups(["en-029+f2", "en-us+m3", "en-gb-scotland+m7", "en-gb-x-rp+f4"])},
            {"by": "dataset", "groups": groups(["clean", "20 dB", "10 dB", "5 dB"])},
        ],
        "confusions": {
            "teacher": [
                {"reference": "five", "hypothesis": "nine", "count": 41},
                {"reference": "the", "hypothesis": None, "count": 33},
                {"reference": None, "hypothesis": "eight", "count": 17},
            ],
            "student": [
                {"reference": "five", "hypothesis": "nine", "count": 9},
                {"reference": "off", "hypothesis": "of", "count": 4},
            ],
        },
        "worst": [utterance(i) for i in range(3)],  # type: ignore[misc]
        "utterances": [compared(i, rng) for i in range(480)],
        "config": "work: work/demo\nseed: 0\nteacher:\n  name: pocketsphinx\nstudent:\n  size: tiny\n",
        "environment": {
            "voxstill": __version__,
            "python": "3.11.7",
            "packages": {"torch": "2.13.0", "numpy": "2.4.0"},
            "threads": 1,
        },
    }


def comparison() -> Comparison:
    rng = random.Random(5)
    references = [rng.choices(DIGITS, k=6) for _ in range(3)]
    hypotheses = [[[rng.choice([word, word, "oh"]) for word in words] for _ in range(3)] for words in references]
    return {
        "title": "Teachers compared",
        "about": "Labels of 3 teachers",
        "utterances": 4440,
        "hours": 1.62,
        "words": 9457,
        "price": 0.5,
        "labellers": [
            {
                "name": f"teacher-{i}@1",
                "recipe": 16 * str(i),
                "options": "beam_size: 5",
                "labels": 4440,
                "failed": i,
                "wer": [0.16, None, 0.3][i],
                "rtfx": [12.3, 0.0, 353.0][i],
                "work_s": [475.0, None, 17.0][i],
                "cost": [0.07, None, 0.002][i],
            }
            for i in range(3)
        ],
        "equal": [[None, 0.66, 0.8], [0.66, None, 0.75], [0.8, 0.75, None]],
        "distances": [[None, 0.22, 0.13], [0.235, None, 0.1], [0.12, 1.4, None]],
        "disputed": [
            {
                "id": f"george-{i}",
                "about": "george",
                "has_reference": i > 0,
                "versions": [
                    {"number": n, "wer": counts.rate, "pairs": pairs}
                    for n, (counts, pairs) in enumerate((align(reference, words) for words in versions), start=1)
                ],
                "audio": None if i == 1 else tone(),
            }
            for i, (reference, versions) in enumerate(zip(references, hypotheses, strict=True))
        ],
    }
