import numpy as np

from voxstill.core.records import Utterance, UtteranceInfo
from voxstill.teachers.reference import ReferenceOptions, ReferenceTeacher
from voxstill.teachers.teacher import Clip


def clip(text: str | None) -> Clip:
    info = UtteranceInfo(language="en")
    utterance = Utterance(id="a", recording_id="a", uri="a.wav", end_ms=1000, info=info, text=text)
    return Clip(utterance=utterance, samples_T=np.zeros(16_000, np.int16))


def test_the_human_text_comes_back_without_a_confidence() -> None:
    (result,) = ReferenceTeacher(ReferenceOptions()).transcribe_batch([clip("turn on the light")])
    assert (result.text, result.num_tokens, result.language, result.mean_logprob) == (
        "turn on the light",
        4,
        "en",
        None,
    )
    assert result.error is None


def test_a_clip_without_a_human_text_is_a_row_with_a_reason() -> None:
    (result,) = ReferenceTeacher(ReferenceOptions()).transcribe_batch([clip(None)])
    assert result.finish == "failed"
    assert result.error is not None
