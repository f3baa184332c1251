"""The embedded engine on real speech: who speaks, how many, and when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from voxstill.core.config import Diarize
from voxstill.core.errors import ConfigError
from voxstill.diarization import weights
from voxstill.diarization.diarizer import Diarizer
from voxstill.diarization.turns import Turn
from voxstill.scoring.speakers import score_diarization
from voxstill.text.rttm import RttmEvent

pytestmark = pytest.mark.usefixtures("embedded_weights")


def events(turns: tuple[Turn, ...], session: str) -> list[RttmEvent]:
    return [
        RttmEvent(
            kind="SPEAKER",
            session=session,
            channel="1",
            speaker=str(turn.speaker),
            subtype="",
            start_us=turn.start_ms * 1000,
            end_us=turn.end_ms * 1000,
        )
        for turn in turns
    ]


@pytest.mark.parametrize("num_speakers", [1, 3])
def test_the_speakers_of_a_conversation_are_found(
    conversations: ModuleType, shared_data: Callable[[str], Path], num_speakers: int
) -> None:
    clips = conversations.read_clips(shared_data("librispeech-unlabelled-30"))
    clips = dict(list(clips.items())[:10])
    one = conversations.simulate("talk", clips, num_speakers, 5, seconds=60.0)
    with Diarizer(Diarize(name="embedded")) as diarizer:
        result = diarizer.diarize(one.samples_T)
        again = diarizer.diarize(one.samples_T)
        known = Diarizer(Diarize.model_validate({"name": "embedded", "num_speakers": 2}))
    assert result == again
    assert result.error is None
    assert result.num_speakers == num_speakers
    assert score_diarization(one.reference, events(result.turns, "talk")).time.rate < 0.2  # type: ignore[operator]
    assert result.turns[-1].end_ms <= len(one.samples_T) // 16
    with known:
        assert known.diarize(one.samples_T).num_speakers == 2


@pytest.mark.parametrize("num_samples", [0, 100, 16_000])
def test_silence_has_no_turns(num_samples: int) -> None:
    with Diarizer(Diarize(name="embedded")) as diarizer:
        result = diarizer.diarize(np.zeros(num_samples, np.int16))
    assert (result.turns, result.error, result.warning) == ((), None, None)


def test_a_word_at_the_very_end_is_a_turn(shared_data: Callable[[str], Path], conversations: ModuleType) -> None:
    clips = conversations.read_clips(shared_data("librispeech-unlabelled-30"))
    clip_T = next(iter(clips.values()))[0]
    word_T = (clip_T[16_000 : 16_000 + 9_600] * 32_768).astype(np.int16)
    with Diarizer(Diarize(name="embedded")) as diarizer:
        [turn] = diarizer.diarize(np.concatenate([np.zeros(8_000, np.int16), word_T])).turns
    assert turn.speaker == 1
    assert turn.end_ms <= 1_100


def test_another_file_in_place_of_the_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights.pt").write_bytes(b"PK no checkpoint")
    monkeypatch.setattr(weights, "path", lambda: tmp_path / "weights.pt")
    with pytest.raises(ConfigError, match="not a checkpoint of this network"):
        Diarizer(Diarize(name="embedded")).open()
