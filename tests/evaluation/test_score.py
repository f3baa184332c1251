from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from browser import CHROMIUM, Browser
from voxstill import cli
from voxstill.audio import codec
from voxstill.core.command import TranscriptFormat
from voxstill.core.config import Evaluate
from voxstill.core.records import RATE_HZ
from voxstill.text.normalize import NORMALIZERS, WHISPER
from voxstill.text.transcripts import FORMS

REFERENCES = {"a": "Eins, zwei DREI!", "b": "vier fünf", "c": ""}
HYPOTHESES = {"a": "eins zwo drei", "b": "vier", "c": "äh"}


def kaldi(path: Path, texts: dict[str, str]) -> str:
    path.write_text("".join(f"{id_} {text}\n" for id_, text in texts.items()), encoding="utf-8")
    return str(path)


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def score(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*argv: str, code: int = 0) -> dict[str, Any]:
        assert cli.main([*argv, "--json"]) == code
        captured = capsys.readouterr()
        return json.loads(captured.out) if code == 0 else {"error": captured.err}

    return run


def test_files_of_words_are_scored_and_stamped(tmp_path: Path, score: Any) -> None:
    files = kaldi(tmp_path / "ref", REFERENCES), kaldi(tmp_path / "hyp.txt", HYPOTHESES)
    figures = score("score", "words", *files)
    assert (figures["errors"], figures["wer"], figures["words"]) == (3, 0.6, 5)
    assert (figures["substitutions"], figures["insertions"], figures["deletions"]) == (1, 1, 1)
    assert figures["empty_references"] == figures["words_in_silence"] == 1
    assert figures["words_per_hour_of_silence"] is None
    assert {"reference": "zwei", "hypothesis": "zwo", "count": 1} in figures["confusions"]
    assert (figures["scorer"], figures["normalizer"]) == ("rapidfuzz", "basic")
    assert {"voxstill", "rapidfuzz", "unicode", "python"} <= figures["versions"].keys()
    assert score("score", "words", *files, "--normalizer", "none")["errors"] == 5
    assert "transformers" in score("score", "words", *files, "--normalizer", "whisper", "--lang", "de")["versions"]
    assert score("score", "words", *files, "--lang", "tr")["normalizer"] == "tr"


def test_characters_are_counted_where_they_are_asked_for(tmp_path: Path, score: Any) -> None:
    files = kaldi(tmp_path / "ref", {"a": "我有2台"}), kaldi(tmp_path / "hyp", {"a": "我有3台"})
    figures = score("score", "words", *files, "--cer")
    assert (figures["errors"], figures["characters"], figures["cer"], figures["wer"]) == (1, 4, 0.25, 1.0)
    assert score("score", "words", *files, "--lang", "zh")["wer"] == 0.25


def test_errors_are_counted_by_speaker(tmp_path: Path, score: Any) -> None:
    references = [
        {"id": id_, "text": text, "speaker": {"a": "ann"}.get(id_, "bob")} for id_, text in REFERENCES.items()
    ]
    files = lines(tmp_path / "ref.jsonl", references), kaldi(tmp_path / "hyp", HYPOTHESES)
    figures = score("score", "words", *files, "--by", "speaker")
    assert figures["by_speaker"] == {
        "ann": {"wer": pytest.approx(1 / 3), "errors": 1, "words": 3},
        "bob": {"wer": 1.0, "errors": 2, "words": 2},
    }
    assert figures["interval_over"] == "speakers"
    assert "has no speakers" in score("score", "words", files[1], files[1], "--by", "speaker", code=3)["error"]


def test_ids_that_are_in_one_file_alone_are_counted(tmp_path: Path, score: Any) -> None:
    files = kaldi(tmp_path / "ref", {"a": "one", "b": "two"}), kaldi(tmp_path / "hyp", {"a": "one", "c": "three"})
    figures = score("score", "words", *files)
    assert (figures["deletions"], figures["without_hypothesis"], figures["without_reference"]) == (1, 1, 1)
    unrelated = kaldi(tmp_path / "other", {"x": "one"})
    assert "no id in common" in score("score", "words", files[0], unrelated, code=3)["error"]
    (tmp_path / "twice").write_text("a one\na two\n")
    assert "`a` twice" in score("score", "words", files[0], str(tmp_path / "twice"), code=3)["error"]


def test_a_ctm_is_cut_by_the_segments_of_its_stm(tmp_path: Path, score: Any) -> None:
    (tmp_path / "ref.stm").write_text(
        "m 1 ann 0 1 <o> one two\nm 1 bob 1 2 three\nm 1 bob 3 4 IGNORE_TIME_SEGMENT_IN_SCORING\n"
    )
    (tmp_path / "hyp.ctm").write_text("m 1 0.1 0.1 one\nm 1 1.2 0.1 free\nm 1 1.8 0.1 uh\nm 1 3.5 0.1 never\n")
    figures = score("score", "words", str(tmp_path / "ref.stm"), str(tmp_path / "hyp.ctm"))
    assert (figures["substitutions"], figures["insertions"], figures["deletions"], figures["words"]) == (1, 1, 1, 3)
    figures = score("score", "words", str(tmp_path / "hyp.ctm"), str(tmp_path / "hyp.ctm"), code=3)
    assert "no utterances" in figures["error"]


def test_long_texts_are_counted_although_their_errors_are_not_listed(tmp_path: Path, score: Any) -> None:
    texts = [" ".join(f"w{(i * step) % 97}" for i in range(6000)) for step in (1, 3)]
    files = kaldi(tmp_path / "ref", {"a": texts[0]}), kaldi(tmp_path / "hyp", {"a": texts[1]})
    figures = score("score", "words", *files)
    assert figures["errors"] > 1000
    assert figures["confusions"] == []
    assert any("too long to list" in warning for warning in figures["warnings"])


def test_people_read_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = kaldi(tmp_path / "ref", REFERENCES), kaldi(tmp_path / "hyp", HYPOTHESES)
    assert cli.main(["score", "words", *files]) == 0
    out = capsys.readouterr().out
    assert "60.00 %" in out
    assert "normalizer basic; voxstill" in out
    assert cli.main(["score", "words", files[0], files[0]]) == 0
    assert "same file" in capsys.readouterr().out


def experiment(path: Path, texts: dict[str, str], references: dict[str, str] | None = None) -> str:
    folder = path / "evaluation"
    folder.mkdir(parents=True)
    known = references or {f"u{i}": "one two three four" for i in range(40)}
    lines(folder / "test.ref.jsonl", [{"id": id_, "text": t, "speaker": f"s{id_[-1]}"} for id_, t in known.items()])
    lines(folder / "test.hyp.jsonl", [{"id": id_, "text": text} for id_, text in texts.items()])
    return str(path)


def test_two_experiments_are_compared_by_speakers(tmp_path: Path, score: Any) -> None:
    good = experiment(tmp_path / "good", {f"u{i}": "one two three four" for i in range(40)})
    bad = experiment(tmp_path / "bad", {f"u{i}": "one two four" for i in range(40)})
    figures = score("compare", good, bad)
    assert [row["wer"] for row in figures["runs"]] == [0.0, 0.25]
    assert figures["difference"] == 0.25
    assert figures["p"] == pytest.approx(2 / 2**10)
    assert (figures["blocks"], figures["blocks_are"], figures["exact"]) == (10, "speakers", True)
    assert [row["better"] for row in figures["runs"]] == [40, 0]
    assert score("compare", good, good)["p"] == 1.0
    assert "was not evaluated on `dev`" in score("compare", good, bad, "--on", "dev", code=3)["error"]


def test_files_of_hypotheses_are_compared_by_a_reference(
    tmp_path: Path, score: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    files = kaldi(tmp_path / "a", HYPOTHESES), kaldi(tmp_path / "b", {**REFERENCES, "b": "vier"})
    assert "there are no references" in score("compare", *files, code=3)["error"]
    figures = score("compare", *files, "--ref", kaldi(tmp_path / "ref", REFERENCES))
    assert [row["errors"] for row in figures["runs"]] == [3, 1]
    assert figures["blocks_are"] == "utterances"
    assert len(figures["warnings"]) == 2
    assert cli.main(["compare", *files, "--ref", str(tmp_path / "ref")]) == 0
    out = capsys.readouterr().out
    assert "-40.00 points" in out
    assert "is not statistically significant" in out


def test_a_file_without_some_of_the_hypotheses_is_compared_with_a_warning(tmp_path: Path, score: Any) -> None:
    whole, part = kaldi(tmp_path / "whole", REFERENCES), kaldi(tmp_path / "part", dict(list(REFERENCES.items())[:1]))
    warnings = score("compare", whole, part, "--ref", whole)["warnings"]
    num = len(REFERENCES)
    missing = f"`{part}` has no hypothesis for {num - 1} of {num} utterances: all their words count as deletions"
    assert [warning for warning in warnings if "no hypothesis" in warning] == [missing]


def test_experiments_with_different_references_are_not_compared(tmp_path: Path, score: Any) -> None:
    one = experiment(tmp_path / "one", {"u0": "one"}, {"u0": "one"})
    two = experiment(tmp_path / "two", {"u0": "one"}, {"u0": "two"})
    three = experiment(tmp_path / "three", {"u3": "one"}, {"u3": "one"})
    assert "`u0`" in score("compare", one, two, code=3)["error"]
    assert "have no utterance in common" in score("compare", one, three, code=3)["error"]


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")
@pytest.mark.parametrize("files", [False, True])
def test_in_chromium_two_systems_are_shown_side_by_side(tmp_path: Path, score: Any, files: bool) -> None:
    texts = {f"u{i}": "one two three four" for i in range(40)}
    good = experiment(tmp_path / "good", {**texts, "u7": "one too three four oh"})
    bad = experiment(tmp_path / "bad", dict.fromkeys(texts, "one two four"))
    systems = [good, bad]
    if files:
        reference = ("--ref", str(tmp_path / "good/evaluation/test.ref.jsonl"))
        systems = [*(f"{run}/evaluation/test.hyp.jsonl" for run in systems), *reference]
    page = tmp_path / "two.html"
    figures = score("compare", *systems, "--report", str(page))
    assert figures["report"] == str(page)
    assert [len(row["by_speaker"]) for row in figures["runs"]] == [10, 10]
    rows = "[...document.querySelectorAll('#utterances tbody > tr:not(.opened)')]"
    with Browser(tmp_path) as browser:
        browser.open(page.as_uri())
        browser.wait_for("!document.querySelector('#utterances').hidden")
        big = "[...document.querySelectorAll('.headline .big')].map((each) => each.textContent)"
        assert browser.evaluate(big) == ["1.2\u202f%", "25.0\u202f%", "+23.75"]
        text = browser.evaluate("document.querySelector('#result').textContent")
        assert "The second makes more errors, which is statistically significant." in text
        assert f"p = {figures['p']:.2g}" in text
        assert ("on the test split" in text) == (not files)
        assert browser.evaluate(f"{rows}.length") == 40
        browser.evaluate(
            "{ const show = document.querySelector('[data-part=show]'); show.value = 'better';"
            "show.dispatchEvent(new Event('change')); }"
        )
        assert browser.evaluate(f"{rows}.map((row) => row.querySelector('button').textContent)") == ["u7"]
        browser.evaluate(f"{rows}[0].querySelector('button').click()")
        for side, kinds in (("first", "hit sub hit hit more"), ("second", "hit hit gone hit")):
            aligned = f"[...document.querySelectorAll('.opened .heard.{side} .aligned > span:not(.lead)')]"
            assert browser.evaluate(f"{aligned}.map((each) => each.className).join(' ')") == kinds
        assert browser.evaluate("document.querySelectorAll('#worst article').length") == 20
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert not browser.errors
        assert all(uri.startswith(("file:", "data:", "blob:")) for uri in browser.network)


def test_two_equal_systems_make_a_page_without_differences(tmp_path: Path, score: Any) -> None:
    same = kaldi(tmp_path / "a", HYPOTHESES)
    page = tmp_path / "alike.html"
    score("compare", same, same, "--ref", kaldi(tmp_path / "ref", REFERENCES), "--report", str(page))
    html = page.read_text(encoding="utf-8")
    assert "is not statistically significant" in html
    assert "Largest disagreements" not in html
    assert "None" not in html


def rttm(path: Path, rows: list[tuple[str, str, float, float]]) -> str:
    text = "".join(
        f"SPEAKER {session} 1 {start} {end - start} <NA> <NA> {who} <NA>\n" for session, who, start, end in rows
    )
    path.write_text(text)
    return str(path)


def test_files_of_speakers_are_scored(tmp_path: Path, score: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reference = rttm(tmp_path / "ref.rttm", [("m", "ann", 0, 4), ("m", "bob", 4, 8), ("n", "ann", 0, 2)])
    hypothesis = rttm(tmp_path / "hyp.rttm", [("m", "1", 0, 4), ("m", "2", 5, 8), ("k", "1", 0, 9)])
    figures = score("score", "speakers", reference, hypothesis)
    assert (figures["der"], figures["missed_ms"], figures["false_alarm_ms"], figures["confused_ms"]) == (
        0.3,
        3000,
        0,
        0,
    )
    assert [recording["recording"] for recording in figures["recordings"]] == ["m", "n"]
    assert figures["recordings"][0]["mapping"] == {"1": "ann", "2": "bob"}
    assert figures["scorer"] == "voxstill"
    assert any("`n 1`" in warning for warning in figures["warnings"])
    assert any("`k 1`" in warning for warning in figures["warnings"])
    assert score("score", "speakers", reference, hypothesis, "--collar", "1")["missed_ms"] == 0
    (tmp_path / "a.uem").write_text("m 1 0 4\nn 1 0 1\n")
    assert score("score", "speakers", reference, hypothesis, "--uem", str(tmp_path / "a.uem"))["missed_ms"] == 1000
    for mark in (";", ";;", "#"):
        (tmp_path / "b.uem").write_text(f"{mark} what is scored\nm 1 0 4\n  {mark} and this\nn 1 0 1\n")
        assert score("score", "speakers", reference, hypothesis, "--uem", str(tmp_path / "b.uem"))["missed_ms"] == 1000
    other = rttm(tmp_path / "other.rttm", [("x", "1", 0, 4)])
    assert "no recording in common" in score("score", "speakers", reference, other, code=3)["error"]
    assert cli.main(["score", "speakers", reference, hypothesis, "--ignore-overlap"]) == 0
    assert "overlap not judged" in capsys.readouterr().out
    for text, message in (("SPEAKER m 1 0\n", "eight columns"), ("SPEAKER m 1 0 -1 <NA> <NA> a <NA>\n", "lasts -1")):
        (tmp_path / "bad.rttm").write_text(text)
        assert message in score("score", "speakers", reference, str(tmp_path / "bad.rttm"), code=3)["error"]
    (tmp_path / "a.uem").write_text("m 1 0 4\nm 1 3 5\n")
    assert (
        "overlap"
        in score("score", "speakers", reference, hypothesis, "--uem", str(tmp_path / "a.uem"), code=3)["error"]
    )


def test_turns_after_the_end_of_the_audio_are_warned_of(tmp_path: Path, score: Any) -> None:
    reference = rttm(tmp_path / "ref.rttm", [("m", "ann", 0, 4), ("n", "ann", 0, 2), ("k", "bob", 0, 1)])
    hypothesis = rttm(
        tmp_path / "hyp.rttm", [("m", "1", 0, 4), ("m", "2", 2.5, 5.25), ("n", "1", 0, 2), ("k", "1", 0, 1)]
    )
    audio = tmp_path / "audio/deep"
    audio.mkdir(parents=True)
    noise_T = np.random.default_rng(0).integers(-500, 500, 3 * RATE_HZ).astype(np.int16)
    (audio / "m.wav").write_bytes(codec.encode(noise_T, "wav"))
    (audio / "m.rttm").write_text("beside it")
    (audio / "n.flac").write_bytes(codec.encode(noise_T, "flac")[:3000])
    plain = score("score", "speakers", reference, hypothesis)
    figures = score("score", "speakers", reference, hypothesis, "--audio", str(tmp_path / "audio"))
    assert figures["der"] == plain["der"]
    assert {recording["recording"]: recording["duration_ms"] for recording in figures["recordings"]} == {
        "k": None,
        "m": 3000,
        "n": None,
    }
    warnings = "\n".join(figures["warnings"])
    assert "m: 1.00 s of the reference are after the end of the recording" in warnings
    assert "m: 3.25 s of the hypothesis are after the end of the recording: its last turn ends at 5.25 s" in warnings
    assert "n: the duration of its audio cannot be read" in warnings
    assert "1 recordings have no audio" in warnings
    assert not any("after the end" in warning for warning in plain["warnings"])
    alone = rttm(tmp_path / "one.rttm", [("call", "ann", 0, 4)])
    figures = score("score", "speakers", alone, alone, "--audio", str(audio / "m.wav"))
    assert figures["recordings"][0]["duration_ms"] == 3000
    assert sum("1.00 s" in warning for warning in figures["warnings"]) == 2


def test_files_of_meetings_are_scored(tmp_path: Path, score: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ref.stm").write_text("m 1 ann 0 1 One, two.\nm 1 bob 1 2 three\nn 1 ann 0 1 four\n")
    (tmp_path / "hyp.stm").write_text("m 1 x 60 61 one two\nm 1 y 1 2 free\nk 1 x 0 1 one\n")
    files = str(tmp_path / "ref.stm"), str(tmp_path / "hyp.stm")
    figures = score("score", "meeting", *files)
    assert (figures["cpwer"], figures["errors"], figures["words"], figures["tcpwer"]) == (0.5, 2, 4, 1.5)
    assert figures["sessions"][0]["mapping"] == {"x": "ann", "y": "bob"}
    assert {"rapidfuzz", "unicode"} <= figures["versions"].keys()
    assert len([warning for warning in figures["warnings"] if warning[:2] in ("n:", "k:")]) == 3
    assert score("score", "meeting", *files, "--collar", "90")["tcpwer"] == 0.5
    untimed = [{"id": i, "session": "m", "speaker": "p", "text": "one two"} for i in range(2)]
    figures = score("score", "meeting", files[0], lines(tmp_path / "hyp.jsonl", untimed))
    assert figures["tcpwer"] is None
    plain = kaldi(tmp_path / "plain", REFERENCES)
    assert "has no session" in score("score", "meeting", files[0], plain, code=3)["error"]
    (tmp_path / "other.stm").write_text("z 1 x 0 1 one two\n")
    other = str(tmp_path / "other.stm")
    assert "no session in common" in score("score", "meeting", files[0], other, code=3)["error"]
    assert cli.main(["score", "meeting", *files]) == 0
    assert "tcpWER with a collar" in capsys.readouterr().out


def test_the_names_of_forms_and_normalizers_are_those_there_are() -> None:
    assert list(get_args(TranscriptFormat)) == list(FORMS)
    named = get_args(Evaluate.model_fields["normalizer"].annotation)
    assert set(named) == {*NORMALIZERS, WHISPER}


def test_errors_are_broken_down_by_any_field_of_a_jsonl(tmp_path: Path, score: Any) -> None:
    rows = [{"id": id_, "text": text, "accent": f"x{i % 2}"} for i, (id_, text) in enumerate(REFERENCES.items())]
    reference = lines(tmp_path / "ref.jsonl", rows)
    hypothesis = kaldi(tmp_path / "hyp", HYPOTHESES)
    figures = score("score", "words", reference, hypothesis, "--by", "accent")
    assert set(figures["by_accent"]) == {"x0", "x1"}
    assert sum(row["errors"] for row in figures["by_accent"].values()) == figures["errors"]
    assert "has no field `age`" in score("score", "words", reference, hypothesis, "--by", "age", code=3)["error"]


def test_the_worst_utterances_are_aligned_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = (
        kaldi(tmp_path / "ref", {"a": "one two", "b": "vier"}),
        kaldi(tmp_path / "hyp", {"a": "one too", "b": "vier"}),
    )
    assert cli.main(["score", "words", *files, "--show", "5"]) == 0
    out = capsys.readouterr().out
    assert "a: 1 errors\n  ref  one TWO\n  hyp  one TOO\n" in out
    assert "b: " not in out


@pytest.mark.parametrize("text", ["สวัสดีครับวันนี้อากาศดีมาก", "今天天气很好我们去公园玩吧", "打开电灯"])
def test_languages_without_spaces_are_counted_in_characters_with_a_warning(
    tmp_path: Path, score: Any, text: str
) -> None:
    files = kaldi(tmp_path / "ref", {"a": text}), kaldi(tmp_path / "hyp", {"a": text[:-1]})
    figures = score("score", "words", *files)
    assert (figures["unit"], figures["errors"], figures["wer"]) == ("characters", 1, 1.0)
    assert any("no spaces between words" in warning for warning in figures["warnings"])
    words = score("score", "words", *files, "--no-cer")
    assert (words["unit"], words["errors"]) == ("words", 1)
    assert any("use the CER" in warning for warning in words["warnings"])
    spaced = kaldi(tmp_path / "spaced", {"a": " ".join(text)})
    assert score("score", "words", spaced, spaced)["unit"] == "words"


def test_an_empty_hypothesis_misses_all_speech(tmp_path: Path, score: Any) -> None:
    reference = rttm(tmp_path / "ref.rttm", [("talk", "a", 0, 2), ("talk", "b", 2, 5)])
    figures = score("score", "speakers", reference, rttm(tmp_path / "hyp.rttm", []))
    assert (figures["der"], figures["missed_ms"], figures["scored_ms"]) == (1.0, 5000, 5000)
    assert any("all their speech is missed" in warning for warning in figures["warnings"])
    assert (
        "no recording in common"
        in score("score", "speakers", rttm(tmp_path / "no.rttm", []), reference, code=3)["error"]
    )


def test_times_in_milliseconds_are_hinted_at(tmp_path: Path, score: Any) -> None:
    turns = [("talk", "a", 0.5, 2.5), ("talk", "b", 2.5, 5.75), ("talk", "a", 6.0, 7.5)]
    seconds = rttm(tmp_path / "s.rttm", turns)
    milliseconds = rttm(
        tmp_path / "ms.rttm", [(talk, who, 1000 * start, 1000 * end) for talk, who, start, end in turns]
    )
    for files, sides in (
        ((seconds, milliseconds), ["hypothesis"]),
        ((milliseconds, milliseconds), ["reference", "hypothesis"]),
    ):
        warnings = score("score", "speakers", *files)["warnings"]
        hinted = [
            side for side in ("reference", "hypothesis") if any(f"of the {side} look like milli" in w for w in warnings)
        ]
        assert hinted == sides
    assert not any("look like" in warning for warning in score("score", "speakers", seconds, seconds)["warnings"])
