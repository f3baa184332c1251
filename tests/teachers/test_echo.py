import multiprocessing
import signal
import time
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from voxstill.core.records import Utterance
from voxstill.teachers.echo import EchoOptions, EchoTeacher
from voxstill.teachers.teacher import Clip, Transcription

SENTENCE = "set the bedroom heater to twenty one degrees"
FAULTY = EchoOptions(substitute=0.2, delete=0.1, insert=0.1, vocabulary=["one", "two", "three"])


def clips(texts: Sequence[str | None]) -> list[Clip]:
    return [
        Clip(
            utterance=Utterance(id=f"u{k}", recording_id="r", uri="r.wav", end_ms=2000, text=text),
            samples_T=np.zeros(32_000, np.int16),
        )
        for k, text in enumerate(texts)
    ]


def transcribe(options: EchoOptions, texts: Sequence[str | None]) -> list[Transcription]:
    return EchoTeacher(options).transcribe_batch(clips(texts))


def test_without_mistakes_it_repeats_the_text() -> None:
    (result,) = transcribe(EchoOptions(), [SENTENCE])
    assert result.text == SENTENCE
    assert result.words[0].start_ms == 0
    assert result.words[-1].end_ms == 2000
    assert result.mean_logprob is not None
    assert result.mean_logprob < 0


@given(st.permutations(range(12)))
def test_an_utterance_has_the_same_label_whatever_its_neighbours(order: list[int]) -> None:
    given_clips = clips([SENTENCE] * 12)
    teacher = EchoTeacher(FAULTY)
    alone = teacher.transcribe_batch(given_clips)
    assert teacher.transcribe_batch([given_clips[k] for k in order]) == [alone[k] for k in order]


def test_mistakes_come_as_often_as_asked() -> None:
    result = transcribe(EchoOptions(substitute=0.3, vocabulary=["wrong", "false"]), [SENTENCE] * 400)
    wrong = sum(word.text in ("wrong", "false") for result in result for word in result.words)
    assert 0.27 < wrong / (400 * 8) < 0.33
    lost = sum(len(result.words) for result in transcribe(EchoOptions(delete=0.3), [SENTENCE] * 400))
    assert 0.67 < lost / (400 * 8) < 0.73
    more = sum(len(result.words) for result in transcribe(EchoOptions(insert=0.3), [SENTENCE] * 400))
    assert 1.27 < more / (400 * 8) < 1.33


def test_it_is_less_sure_where_it_erred() -> None:
    results = transcribe(FAULTY, [SENTENCE] * 300)
    right = [result.mean_logprob for result in results if result.text == SENTENCE and result.mean_logprob is not None]
    wrong = [result.mean_logprob for result in results if result.text != SENTENCE and result.mean_logprob is not None]
    assert np.mean(right) > np.mean(wrong) + 0.1


def test_a_mistake_without_a_vocabulary_is_never_the_true_word() -> None:
    for result in transcribe(EchoOptions(substitute=1.0), ["a level stop", "日本"]):
        assert not {"a", "level", "stop", "日本"} & set(result.text.split())


def test_faults_do_not_change_the_revision_and_mistakes_do() -> None:
    plain = EchoTeacher(EchoOptions()).revision()
    assert EchoTeacher(EchoOptions(crash_on=["x"], delay_ms=5)).revision() == plain
    assert EchoTeacher(EchoOptions(seed=1)).revision() != plain


def test_a_text_that_is_absent_or_chosen_to_fail_is_a_row_with_a_reason() -> None:
    absent, failed, empty = transcribe(EchoOptions(fail_on=["u1"]), [None, SENTENCE, ""])
    assert absent.error is not None
    assert failed.error is not None
    assert (empty.error, empty.text, empty.mean_logprob) == (None, "", None)


def test_an_utterance_chosen_to_crash_kills_the_process() -> None:
    child = _child(EchoOptions(crash_on=["u0"]))
    child.join(30)
    assert child.exitcode == -signal.SIGKILL


def test_an_utterance_chosen_to_hang_is_never_answered() -> None:
    child = _child(EchoOptions(hang_on=["u0"]))
    time.sleep(0.5)
    assert child.is_alive()
    child.kill()
    child.join()


def _child(options: EchoOptions) -> multiprocessing.Process:
    child = multiprocessing.get_context("fork").Process(target=transcribe, args=(options, [SENTENCE]))  # type: ignore[attr-defined]
    child.start()
    return child
