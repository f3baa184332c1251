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

from voxstill.config import Config
from voxstill.evaluation.score import of_words
from voxstill.records import ErrorCounts
from voxstill.score.words import cer, count, wer
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
        said = chance.choices(vocabulary, k=chance.randint(1, 40))
        share, heard = chance.choice([0.02, 0.1, 0.3, 0.7]), list[str]()
        for word in said:
            kind = chance.random() / share
            heard += [word] if kind > 1 else [] if kind < 0.3 else [chance.choice(vocabulary)] * chance.randint(1, 2)
        pairs.append((" ".join(said), " ".join(heard)))
    return pairs


def edges(number: int, seed: int) -> list[tuple[str, str]]:
    """Empty, equal, reversed, repeated, one against many, all different, one letter apart, spaces doubled."""
    chance = random.Random(seed)
    pairs = []
    for i in range(number):
        some = chance.choices(WORDS, k=chance.randint(0, 60))
        text = " ".join(some)
        pairs.append(
            [
                ("", text),
                (text, ""),
                (text, text),
                (text, " ".join(reversed(some))),
                (" ".join(some[:1] * 30), " ".join(some[:1] * chance.randint(0, 60))),
                (text, " ".join(some[:1])),
                (text, " ".join(f"{each}x" for each in some)),
                (f"  {text}  ", text.replace(" ", "  ")),
                (" ".join("ab" * chance.randint(0, 20)), " ".join("ba" * chance.randint(0, 20))),
                (text, " ".join(some[7:] + some[:7])),
            ][i % 10]
        )
    return pairs


PAIRS = generated(10_000, 0)
EDGES = edges(1000, 1)


@pytest.mark.parametrize("pairs", [PAIRS, EDGES], ids=["generated", "edges"])
def test_totals_are_those_of_jiwer(pairs: list[tuple[str, str]]) -> None:
    jiwer = pytest.importorskip("jiwer")
    for ours, process in ((wer, jiwer.process_words), (cer, jiwer.process_characters)):
        some = pairs if ours is wer else pairs[::10]
        if ours is cer:  # jiwer keeps doubled spaces as characters
            some = [(" ".join(ref.split()), " ".join(hyp.split())) for ref, hyp in some]
        found = process([ref for ref, _ in some], [hyp for _, hyp in some])
        counts = ours(some)
        assert counts.errors == found.substitutions + found.insertions + found.deletions
        assert counts.reference == found.hits + found.substitutions + found.deletions


def test_each_pair_is_counted_as_jiwer_does() -> None:
    jiwer = pytest.importorskip("jiwer")
    for ref, hyp in [*EDGES, *PAIRS[::10]]:
        found = jiwer.process_words(ref, hyp)
        assert wer([(ref, hyp)]).errors == found.substitutions + found.insertions + found.deletions


@pytest.fixture
def program() -> str:
    """NIST's sclite, where it is installed (Debian's `sctk`)."""
    found = shutil.which("sclite") or shutil.which("sclite", path="/usr/lib/sctk/bin")
    if found is None:
        pytest.skip("sclite is not installed")
    return found


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
        found = re.findall(r"^id: \(s-(\d+)\)\n.*?^Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)$", out, re.M | re.S)
        rows = {int(id_): [int(each) for each in counts] for id_, *counts in found}
        assert len(rows) == len(pairs)
        return [
            ErrorCounts(hits=hits, substitutions=subs, deletions=dels, insertions=ins)
            for hits, subs, dels, ins in (rows[i] for i in range(len(pairs)))
        ]

    return run


@pytest.mark.parametrize("pairs", [PAIRS, EDGES], ids=["generated", "edges"])
def test_the_split_is_that_of_sclite_wherever_it_finds_the_fewest(
    pairs: list[tuple[str, str]], sclite: Callable[[Sequence[tuple[str, str]]], list[ErrorCounts]]
) -> None:
    theirs, ours = sclite(pairs), [count(ref.split(), hyp.split()) for ref, hyp in pairs]
    assert all(our.errors <= their.errors for our, their in zip(ours, theirs, strict=True))
    fewest = [(our, their) for our, their in zip(ours, theirs, strict=True) if our.errors == their.errors]
    assert all(our == their for our, their in fewest)
    assert len(fewest) > 0.97 * len(pairs)


def test_words_with_times_are_cut_into_segments_as_sclite_cuts_them(program: str, tmp_path: Path) -> None:
    chance = random.Random(0)
    segments, heard = [], []
    for recording in "abcdefgh":
        at = 0.0
        for _ in range(20):
            at += chance.choice([0, chance.uniform(0.1, 2)])
            said = chance.choices(WORDS[:12], k=chance.randint(1, 10))
            segments.append(
                f"{recording} 1 s{chance.randint(0, 2)} {at:.3f} {at + 0.4 * len(said):.3f} {' '.join(said)}"
            )
            for i, word in enumerate(said):
                start = at + 0.4 * i + chance.uniform(0, 0.2)
                heard += [f"{recording} 1 {start:.3f} 0.123 {word}"] if chance.random() > 0.2 else []
                heard += [f"{recording} 1 {start + 0.33:.3f} 0.017 oh"] if chance.random() > 0.9 else []
            at += 0.4 * len(said)
    heard.sort(key=lambda line: (line[0], float(line.split()[2])))
    (tmp_path / "ref.stm").write_text("\n".join(segments) + "\n", encoding="utf-8")
    (tmp_path / "hyp.ctm").write_text("\n".join(heard) + "\n", encoding="utf-8")
    files = str(tmp_path / "ref.stm"), str(tmp_path / "hyp.ctm")
    command = [program, "-r", "ref.stm", "stm", "-h", "hyp.ctm", "ctm", "-e", "utf-8", "-o", "rsum", "stdout"]
    # long paths break its tables
    out = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path).stdout.decode("utf-8", "replace")
    theirs = [int(each) for each in re.findall(r"\d+", re.findall(r"\| Sum .*", out)[0])[:7]]
    ours = of_words(Config(), *files)
    names = ("utterances", "words", "hits", "substitutions", "deletions", "insertions", "errors")
    assert [ours[name] for name in names] == theirs


def test_published_counts_of_librispeech(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("peer-vectors")
    known = json.loads((folder / "wer_known.json").read_text())["librispeech_bias"]
    for system, told in known.items():
        split = system.partition(".")[0]
        said, heard = (
            {row[0]: row[1] for row in (line.split("\t") for line in path.read_text().splitlines())}
            for path in (
                folder / f"wer-librispeech-bias/{split}.ref.tsv",
                folder / f"wer-librispeech-bias/{system}.hyp.tsv",
            )
        )
        counts = wer((text, heard[id_]) for id_, text in said.items())
        assert counts.reference == told["ref_words"]
        published = told["subs"] + told["ins"] + told["dels"]
        assert published - 1 <= counts.errors <= published  # of the publisher's edits, some cost more than others


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
    said, heard = (
        {row.id: row.text.casefold() for row in read(str(folder / name), "trn")} for name in (reference, hypothesis)
    )
    found = wer((text, heard[id_]) for id_, text in said.items())
    assert (found.hits, found.substitutions, found.insertions, found.deletions) == counts
