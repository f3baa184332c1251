"""The report has cpWER of diarised labels: from recordings over `index`, `diarize`, `label` to the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from diarization_models import command_of_halves
from judged import experiment
from serving_process import samples_of
from voxstill import cli
from voxstill.audio import codec
from voxstill.evaluation.report.formatting import percent

FIRST, SECOND, THIRD = "du mi ko", "ko ba du", "ba du ko"
STM = f"""talk0 1 Ann 0.0 1.2 {FIRST}
talk0 1 Bob 1.2 2.4 {SECOND}
talk1 1 Bob 0.0 1.2 {THIRD}
talk1 1 Bob 1.2 2.4 {SECOND}
"""


@pytest.fixture
def report(tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Path, str]]:
    """Index, label and report two conversations; gives the experiment and what was printed."""

    def run(human: str | None, *settings: str) -> tuple[Path, str]:
        for number, texts in enumerate([(FIRST, SECOND), (THIRD, SECOND)]):
            audio = tmp_path / "audio" / f"talk{number}.flac"
            audio.parent.mkdir(exist_ok=True)
            audio.write_bytes(codec.encode(samples_of(*texts), "flac"))
        work, options = tmp_path / "work", [word for setting in settings for word in ("--set", setting)]
        index = ["index", str(tmp_path / "audio"), "--work", str(work), "--set", "engine=inline", *options]
        assert cli.main(index) == 0
        (tmp_path / "human.stm").write_text(human or "")
        evaluate = {} if human is None else {"meetings": str(tmp_path / "human.stm")}
        teacher = {"name": "transformers", "model": str(tone_student)}
        exp = experiment(tmp_path / "exp", tone_student, work, teacher=teacher, evaluate=evaluate)
        assert cli.main(["label", str(work), "--config", str(exp / "config.yaml")]) == 0
        capsys.readouterr()
        assert cli.main(["report", str(exp)]) == 0
        printed = capsys.readouterr()
        return exp, printed.out + printed.err

    return run


def test_the_report_has_cpwer_of_each_recording(report: Callable[..., tuple[Path, str]], tmp_path: Path) -> None:
    exp, text = report(STM, command_of_halves(tmp_path))
    meetings = json.loads((exp / "report.json").read_text())["meetings"]
    assert [(row["session"], row["cpwer"], row["speakers"]) for row in meetings["sessions"]] == [
        ("talk0", 0.0, [2, 2]),
        ("talk1", 1.0, [1, 2]),  # three words of the other speaker are missing, and three are of nobody
    ]
    assert (meetings["cpwer"], meetings["words"]) == (0.5, 12)
    assert f"cpWER of the teacher's labels: {percent(0.5)} over 2 meetings" in text
    assert 'id="meetings"' in (exp / "report.html").read_text()
    assert "| talk1 | 100.0 % | 100.0 % | 6 | 1 | 2 |" in (exp / "report.md").read_text().replace("\u202f", " ")


@pytest.mark.parametrize(
    ("human", "warning"),
    [
        (None, None),
        (STM, "no label of a recording of `evaluate.meetings` has a speaker"),
        ("talk0 1 Ann\n", "no cpWER of the teacher"),
    ],
)
def test_without_speakers_in_labels_or_human_words_there_is_none(
    report: Callable[..., tuple[Path, str]], human: str | None, warning: str | None
) -> None:
    exp, text = report(human)
    assert "meetings" not in json.loads((exp / "report.json").read_text())
    assert 'id="meetings"' not in (exp / "report.html").read_text()
    assert (warning or "") in text
    assert ("cpWER" in text) == (warning is not None)
