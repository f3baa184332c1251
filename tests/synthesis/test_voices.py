import numpy as np
import pytest

from voxstill.core.errors import DataError
from voxstill.synthesis.voices import SpeechJob, synthesize

JOBS = [
    SpeechJob(text=text, voice=voice, words_per_minute=170, pitch=pitch)
    for text in ("turn on the light", "one two three")
    for voice in ("en-us+m1", "en-029+f2", "en-us+whisper")
    for pitch in (40, 60)
]


def test_equal_jobs_give_equal_samples_on_any_number_of_processes() -> None:
    alone = list(synthesize(JOBS, processes=1))
    for processes in (2, 5, 50):
        assert all(np.array_equal(a, b) for a, b in zip(alone, synthesize(JOBS, processes), strict=True))


def test_a_job_does_not_depend_on_those_before_it() -> None:
    forwards, backwards = list(synthesize(JOBS)), list(synthesize(JOBS[::-1]))
    assert all(np.array_equal(a, b) for a, b in zip(forwards, backwards[::-1], strict=True))


def test_speech_is_audible_and_about_as_long_as_it_takes() -> None:
    samples_T = next(synthesize([SpeechJob(text="set the bedroom heater to twenty one degrees", voice="en-us+m1")]))
    assert samples_T.dtype == np.int16
    assert 1.5 < len(samples_T) / 16_000 < 4
    assert np.abs(samples_T).max() > 3000


def test_faster_speech_is_shorter() -> None:
    slow, fast = synthesize(
        [SpeechJob(text="one two three", voice="en-us+m1", words_per_minute=rate) for rate in (130, 260)]
    )
    assert len(fast) < 0.8 * len(slow)


def test_an_unknown_voice_is_an_error_that_names_it() -> None:
    with pytest.raises(DataError, match="xx-nobody"):
        list(synthesize([SpeechJob(text="one", voice="xx-nobody")]))


def test_no_jobs_give_no_speech() -> None:
    assert list(synthesize([])) == []
