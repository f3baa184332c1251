"""An index, or labels, of which much failed: what is counted, and that `run` does not go on with the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manifests import wav
from voxstill.core.config import Config, changed
from voxstill.core.errors import DataError, StorageError, TeacherError
from voxstill.pipeline import end_to_end
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances


def config_of(folder: Path, *rows: dict[str, object], share: float = 0.2) -> Config:
    (folder / "a.wav").write_bytes(wav(seconds=2.0))
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Config.model_validate(
        {
            "work": str(folder / "work"),
            "source": {"uri": str(folder / "m.jsonl")},
            "engine": {"name": "inline", "max_failed_share": share},
            "teacher": {"name": "echo"},
            "train": {"steps": 1},
        }
    )


def test_segments_that_cannot_be_used_are_counted_by_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stretches = [{"audio": "a.wav", "start": float(start), "end": start + 1.0} for start in (0, 1, 5, 6)]
    figures = index(config_of(tmp_path, *stretches, {"audio": "a.wav", "channel": 3}))
    assert (figures.recordings, figures.damaged, figures.utterances) == (1, 0, 2)
    assert (figures.damaged_segments, figures.segment_reasons["beyond the end"]) == (3, 2)
    assert sum(figures.segment_reasons.values()) == 3
    assert "3 segments of other recordings cannot be used: beyond the end: 2" in caplog.text
    assert figures.from_dict(figures.to_dict()) == figures


@pytest.mark.parametrize(
    ("second", "error", "code", "fix"),
    [("gone.wav", StorageError, 4, "the same command tries again"), ("m.jsonl", DataError, 3, "fix the source")],
)
def test_a_run_stops_after_an_index_that_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, second: str, error: type[Exception], code: int, fix: str
) -> None:
    cfg = config_of(tmp_path, {"audio": "a.wav"}, {"audio": second})
    assert index(cfg).exit_code == code
    assert fix in caplog.text
    assert f"index: `{tmp_path / second}` cannot be used: " in caplog.text
    with pytest.raises(error, match="1 of 2 recordings cannot be used"):
        end_to_end.run(cfg)
    assert not (tmp_path / "work/labels").exists()


def test_a_run_stops_after_labels_of_which_more_failed_than_is_allowed(tmp_path: Path) -> None:
    rows = [{"audio": "a.wav", "id": f"u{i}", "start": i / 4, "end": i / 4 + 0.5, "text": "one two"} for i in range(4)]
    cfg = changed(config_of(tmp_path, *rows), "teacher.fail_on=[u1, u2]")
    with pytest.raises(TeacherError, match="2 of 4 labels failed") as caught:
        end_to_end.run(cfg)
    assert caught.value.exit_code == label_utterances(cfg).exit_code == 5
    assert "--retry-failed" in caught.value.fix
    assert not (tmp_path / "work/verdicts").exists()
