"""What jiwer, sclite and publishers count, we count."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from voxstill.core.config import Config
from voxstill.core.records import ErrorCounts
from voxstill.evaluation.score import of_words
from voxstill.scoring.words import cer, count, wer
from voxstill.text.transcripts import read

WORDS = [
    *"aeiou",
    "ab",
    "ba",
    "abba",
    "one",
    "two",
    "three",
    "seven",
    "naïve",
    "größe",
    "ли",
    "हिन्दी",
    "ไทย",
    "好",
    "先生",
]


def generated(number: int, seed: int) -> list[tuple[str, str]]:
    """Sentences and what is left of them after words were changed, lost, doubled, moved and made up."""
    chance = random.Random(seed)
    pairs = []
    for _ in range(number):
        vocabulary = chance.sample(WORDS, chance.randint(2, len(WORDS)))
        reference = chance.choices(vocabulary, k=chance.randint(1, 40))
        share, hypothesis = chance.choice([0.02, 0.1, 0.3, 0.7]), list[str]()
        for word in reference:
            kind = chance.random() / share
            hypothesis += (
                [word] if kind > 1 else [] if kind < 0.3 else [chance.choice(vocabulary)] * chance.randint(1, 2)
            )
        pairs.append((" ".join(reference), " ".join(hypothesis)))
    return pairs


def edges(number: int, seed: int) -> list[tuple[str, str]]:
    """Empty, equal, reversed, repeated, one against many, all different, one letter apart, spaces doubled."""
    chance = random.Random(seed)
    pairs = []
    for i in range(number):
        words = chance.choices(WORDS, k=chance.randint(0, 60))
        text = " ".join(words)
        pairs.append(
            [
                ("", text),
                (text, ""),
                (text, text),
                (text, " ".join(reversed(words))),
                (" ".join(words[:1] * 30), " ".join(words[:1] * chance.randint(0, 60))),
                (text, " ".join(words[:1])),
                (text, " ".join(f"{word}x" for word in words)),
                (f"  {text}  ", text.replace(" ", "  ")),
                (" ".join("ab" * chance.randint(0, 20)), " ".join("ba" * chance.randint(0, 20))),
                (text, " ".join(words[7:] + words[:7])),
            ][i % 10]
        )
    return pairs


@pytest.fixture(scope="module", params=["generated", "edges"])
def pairs(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """Pairs of reference and hypothesis."""
    return generated(10_000, 0) if request.param == "generated" else edges(1000, 1)


def test_totals_are_those_of_jiwer(pairs: list[tuple[str, str]]) -> None:
    jiwer = pytest.importorskip("jiwer")
    for metric, process in ((wer, jiwer.process_words), (cer, jiwer.process_characters)):
        compared = pairs if metric is wer else pairs[::10]
        if metric is cer:  # jiwer keeps doubled spaces as characters
            compared = [(" ".join(ref.split()), " ".join(hyp.split())) for ref, hyp in compared]
        expected = process([ref for ref, _ in compared], [hyp for _, hyp in compared])
        counts = metric(compared)
        assert counts.errors == expected.substitutions + expected.insertions + expected.deletions
        assert counts.reference == expected.hits + expected.substitutions + expected.deletions


def test_each_pair_is_counted_as_jiwer_does(pairs: list[tuple[str, str]]) -> None:
    jiwer = pytest.importorskip("jiwer")
    for ref, hyp in pairs[:1000]:
        expected = jiwer.process_words(ref, hyp)
        assert wer([(ref, hyp)]).errors == expected.substitutions + expected.insertions + expected.deletions


@pytest.fixture
def program() -> str:
    """NIST's sclite, where it is installed (Debian's `sctk`)."""
    path = shutil.which("sclite") or shutil.which("sclite", path="/usr/lib/sctk/bin")
    if path is None:
        pytest.skip("sclite is not installed")
    return path


@pytest.fixture
def sclite(program: str, tmp_path: Path) -> Callable[[Sequence[tuple[str, str]]], list[ErrorCounts]]:
    """Its counts of each pair."""

    def run(pairs: Sequence[tuple[str, str]]) -> list[ErrorCounts]:
        for name, side in (("ref", 0), ("hyp", 1)):
            rows = (f"{pair[side]} (s-{i:06})\n" for i, pair in enumerate(pairs))
            (tmp_path / name).write_text("".join(rows), encoding="utf-8")
        files = ["-r", str(tmp_path / "ref"), "trn", "-h", str(tmp_path / "hyp"), "trn"]
        command = [program, *files, "-i", "spu_id", "-e", "utf-8", "-s", "-o", "pra", "stdout"]
        out = subprocess.run(command, capture_output=True, check=True).stdout.decode("utf-8", "replace")
        scores = re.findall(r"^id: \(s-(\d+)\)\n.*?^Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)$", out, re.M | re.S)
        rows = {int(id_): [int(count) for count in counts] for id_, *counts in scores}
        assert len(rows) == len(pairs)
        return [
            ErrorCounts(hits=hits, substitutions=subs, deletions=dels, insertions=ins)
            for hits, subs, dels, ins in (rows[i] for i in range(len(pairs)))
        ]

    return run


def test_the_split_is_that_of_sclite_wherever_it_finds_the_fewest(
    pairs: list[tuple[str, str]], sclite: Callable[[Sequence[tuple[str, str]]], list[ErrorCounts]]
) -> None:
    expected, counts = sclite(pairs), [count(ref.split(), hyp.split()) for ref, hyp in pairs]
    assert all(our.errors <= their.errors for our, their in zip(counts, expected, strict=True))
    fewest = [(our, their) for our, their in zip(counts, expected, strict=True) if our.errors == their.errors]
    assert all(our == their for our, their in fewest)
    assert len(fewest) > 0.97 * len(pairs)


def test_words_with_times_are_cut_into_segments_as_sclite_cuts_them(program: str, tmp_path: Path) -> None:
    chance = random.Random(0)
    segments, ctm_lines = [], []
    for recording in "abcdefgh":
        time_s = 0.0
        for _ in range(20):
            time_s += chance.choice([0, chance.uniform(0.1, 2)])
            words = chance.choices(WORDS[:12], k=chance.randint(1, 10))
            segments.append(
                f"{recording} 1 s{chance.randint(0, 2)} {time_s:.3f} {time_s + 0.4 * len(words):.3f} {' '.join(words)}"
            )
            for i, word in enumerate(words):
                start = time_s + 0.4 * i + chance.uniform(0, 0.2)
                ctm_lines += [f"{recording} 1 {start:.3f} 0.123 {word}"] if chance.random() > 0.2 else []
                ctm_lines += [f"{recording} 1 {start + 0.33:.3f} 0.017 oh"] if chance.random() > 0.9 else []
            time_s += 0.4 * len(words)
    ctm_lines.sort(key=lambda line: (line[0], float(line.split()[2])))
    (tmp_path / "ref.stm").write_text("\n".join(segments) + "\n", encoding="utf-8")
    (tmp_path / "hyp.ctm").write_text("\n".join(ctm_lines) + "\n", encoding="utf-8")
    files = str(tmp_path / "ref.stm"), str(tmp_path / "hyp.ctm")
    command = [program, "-r", "ref.stm", "stm", "-h", "hyp.ctm", "ctm", "-e", "utf-8", "-o", "rsum", "stdout"]
    # long paths break its tables
    out = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path).stdout.decode("utf-8", "replace")
    expected = [int(figure) for figure in re.findall(r"\d+", re.findall(r"\| Sum .*", out)[0])[:7]]
    result = of_words(Config(), *files).to_dict()
    names = ("utterances", "words", "hits", "substitutions", "deletions", "insertions", "errors")
    assert [result[name] for name in names] == expected


def test_published_counts_of_librispeech(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("peer-vectors")
    systems = json.loads((folder / "wer_known.json").read_text())["librispeech_bias"]
    for system, published in systems.items():
        split = system.partition(".")[0]
        references, hypotheses = (
            {row[0]: row[1] for row in (line.split("\t") for line in path.read_text().splitlines())}
            for path in (
                folder / f"wer-librispeech-bias/{split}.ref.tsv",
                folder / f"wer-librispeech-bias/{system}.hyp.tsv",
            )
        )
        counts = wer((text, hypotheses[id_]) for id_, text in references.items())
        assert counts.reference == published["ref_words"]
        num_edits = published["subs"] + published["ins"] + published["dels"]
        assert num_edits - 1 <= counts.errors <= num_edits  # of the publisher's edits, some cost more than others


def test_known_answers_of_jiwer(shared_data: Callable[[str], Path]) -> None:
    known = json.loads((shared_data("peer-vectors") / "wer_known.json").read_text())["jiwer"]
    for kind, count_all in (("words", wer), ("cer", cer)):
        for case in known[kind]:
            ref, hyp = ([case[name]] if isinstance(case[name], str) else case[name] for name in ("ref", "hyp"))
            if case.get("joined"):
                ref, hyp = [" ".join(ref)], [" ".join(hyp)]
            rate = count_all(zip(ref, hyp, strict=True)).rate
            assert rate == pytest.approx(case["wer" if kind == "words" else "cer"])


@pytest.mark.parametrize(
    ("language", "reference", "hypothesis", "counts"),
    [
        ("turkish", "test.turkish.ref", "test.turkish.hyp", (7, 0, 7, 7)),
        ("ukranian", "test.ukranian.ref", "test.ukranian.hyp", (59, 7, 2, 0)),
    ],
)
def test_published_counts_of_sclite(
    shared_data: Callable[[str], Path],
    language: str,
    reference: str,
    hypothesis: str,
    counts: tuple[int, int, int, int],
) -> None:
    folder = shared_data("peer-vectors/sclite")
    references, hypotheses = (
        {row.id: row.text.casefold() for row in read(str(folder / name), "trn")} for name in (reference, hypothesis)
    )
    total = wer((text, hypotheses[id_]) for id_, text in references.items())
    assert (total.hits, total.substitutions, total.insertions, total.deletions) == counts
