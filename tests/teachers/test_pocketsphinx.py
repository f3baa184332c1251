from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.core import config, pcm
from voxstill.core.errors import ConfigError, TeacherError
from voxstill.core.records import Utterance
from voxstill.demo import corpus
from voxstill.synthesis.voices import SpeechJob, synthesize
from voxstill.teachers import registry
from voxstill.teachers.pocketsphinx import PocketSphinxOptions, PocketSphinxTeacher, prepare
from voxstill.teachers.teacher import Clip, Teacher

COMMANDS = str(Path(corpus.__file__).parent / "commands.jsgf")
DIGITS = str(Path(__file__).parents[2] / "examples/digits.jsgf")
TEXTS = [
    "turn on the kitchen light",
    "set the bedroom heater to twenty one degrees",
    "play music in the hall",
    "lock the garage door",
    "wake me in nine minutes",
    "stop the news",
]


def opened(**options: object) -> Teacher:
    teacher = registry.create(config.Teacher(name="pocketsphinx", **options))
    teacher.load()
    return teacher


def clip(name: str, samples_T: NDArray[np.int16], text: str | None = None) -> Clip:
    duration_ms = pcm.samples_to_ms(len(samples_T))
    utterance = Utterance(id=name, recording_id=name, uri="", end_ms=duration_ms, text=text)
    return Clip(utterance=utterance, samples_T=samples_T)


@pytest.fixture(scope="module")
def spoken() -> list[Clip]:
    jobs = [SpeechJob(text=text, voice="en-us+m7") for text in TEXTS]
    return [clip(text, samples_T) for text, samples_T in zip(TEXTS, synthesize(jobs), strict=True)]


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return opened(grammar=COMMANDS)


def test_clear_commands_are_understood(teacher: Teacher, spoken: Sequence[Clip]) -> None:
    results = teacher.transcribe_batch(spoken)
    assert sum(result.text == text for result, text in zip(results, TEXTS, strict=True)) >= 5
    assert all(result.num_tokens == len(result.text.split()) for result in results)


def test_without_its_grammar_it_searches_freely_by_the_same_options_but_those_of_the_grammar() -> None:
    options = {"noise_floor_db": 20.0, "grammar": COMMANDS, "word_prob": 0.1, "language_weight": 2.0}
    with_grammar = PocketSphinxTeacher(PocketSphinxOptions(**options))  # type: ignore[arg-type]
    free = with_grammar.without_grammar()
    assert free is not None
    assert free.options == PocketSphinxOptions(noise_floor_db=20.0)
    assert free.revision() != with_grammar.revision()
    assert free.without_grammar() is None


def test_another_model_has_no_free_search_without_a_language_model_of_its_own() -> None:
    options = {"grammar": COMMANDS, "model": "models/fr"}
    assert PocketSphinxTeacher(PocketSphinxOptions(**options)).without_grammar() is None
    free = PocketSphinxTeacher(PocketSphinxOptions(**options, language_model="models/fr.lm")).without_grammar()
    assert free is not None
    assert free.options.language_model == "models/fr.lm"


def test_words_come_in_order_inside_the_clip_with_a_probability(teacher: Teacher, spoken: Sequence[Clip]) -> None:
    for clip, result in zip(spoken, teacher.transcribe_batch(spoken), strict=True):
        edges = [edge for word in result.words for edge in (word.start_ms, word.end_ms)]
        assert edges == sorted(edges)
        assert edges[0] >= 0
        assert edges[-1] <= clip.utterance.duration_ms
        assert all(word.prob is not None and 0 < word.prob <= 1 for word in result.words)
        assert not any("(" in word.text for word in result.words)


def test_a_clip_has_the_same_text_whatever_came_before_it(teacher: Teacher, spoken: Sequence[Clip]) -> None:
    rng = np.random.default_rng(0)
    alone = {
        spoken_clip.utterance.id: result
        for spoken_clip, result in zip(spoken, teacher.transcribe_batch(spoken), strict=True)
    }
    loud = clip("loud", rng.integers(-30_000, 30_000, 32_000).astype(np.int16))
    shuffled = [spoken[k] for k in rng.permutation(len(spoken))]
    again = teacher.transcribe_batch([loud, *shuffled])[1:]
    assert again == [alone[spoken_clip.utterance.id] for spoken_clip in shuffled]
    assert opened(grammar=COMMANDS).transcribe_batch(shuffled) == again


def test_a_clip_that_is_empty_silent_or_full_is_an_answer_like_any_other(
    teacher: Teacher, spoken: Sequence[Clip]
) -> None:
    odd = [
        clip("none", np.zeros(0, np.int16)),
        clip("one", np.ones(1, np.int16)),
        clip("silent", np.zeros(8000, np.int16)),
        clip("full", np.full(8000, -32768, np.int16)),
    ]
    results = teacher.transcribe_batch([*odd, spoken[0]])
    assert len(results) == 5
    assert results[-1] == teacher.transcribe_batch(spoken[:1])[0]
    assert all(result.mean_logprob is None for result in results if not result.words)


def test_a_clip_with_no_samples_and_no_padding_is_a_row_with_a_reason() -> None:
    (result,) = opened(grammar=DIGITS, pad_ms=0).transcribe_batch([clip("none", np.zeros(0, np.int16))])
    assert result.finish == "failed"
    assert result.error is not None


def test_words_that_the_dictionary_lacks_are_named(tmp_path: Path) -> None:
    path = tmp_path / "g.jsgf"
    path.write_text("#JSGF V1.0;\ngrammar g;\npublic <s> = zero | frobnicate | xyzzyx;\n")
    with pytest.raises(TeacherError, match="frobnicate, xyzzyx"):
        opened(grammar=str(path))


def test_a_wrong_grammar_is_an_error_that_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "g.jsgf"
    path.write_text("#JSGF V1.0;\ngrammar g;\npublic <s> = (zero | one;\n")
    with pytest.raises(TeacherError) as caught:
        opened(grammar=str(path))
    assert "line 3" in caught.value.why


def test_a_grammar_that_is_absent_is_an_error() -> None:
    with pytest.raises(TeacherError, match="cannot be read"):
        opened(grammar="nowhere.jsgf")


def test_the_revision_follows_the_grammar(tmp_path: Path) -> None:
    path = tmp_path / "g.jsgf"
    path.write_text("#JSGF V1.0;\ngrammar g;\npublic <s> = zero;\n")
    teacher = registry.create(config.Teacher(name="pocketsphinx", grammar=str(path)))
    first = teacher.revision()
    assert first == teacher.revision()
    path.write_text("#JSGF V1.0;\ngrammar g;\npublic <s> = one;\n")
    assert teacher.revision() != first


def test_a_key_phrase_is_spotted_and_others_are_not(spoken: Sequence[Clip]) -> None:
    results = opened(keyphrases=["kitchen light", "garage door"]).transcribe_batch(spoken)
    assert results[3].text == "garage door"
    assert all(result.text == "" for k, result in enumerate(results) if k not in (0, 3))


def test_free_speech_needs_no_grammar(spoken: Sequence[Clip]) -> None:
    (result,) = opened().transcribe_batch(spoken[:1])
    assert len(result.words) >= 3  # which words they are is another matter: it is a weak model
    assert result.mean_logprob is not None


def test_a_grammar_and_key_phrases_together_are_refused() -> None:
    with pytest.raises(ConfigError):
        registry.create(config.Teacher(name="pocketsphinx", grammar=DIGITS, keyphrases=["one"]))


def test_a_clip_is_brought_to_one_loudness_over_a_floor_of_its_own() -> None:
    tone_T = (500 * np.sin(np.arange(16_000))).astype(np.int16)
    one, same, louder, other = (
        prepare(samples_T, name, 40.0, 100)
        for samples_T, name in ((tone_T, "a"), (tone_T, "a"), (tone_T * 8, "a"), (tone_T, "b"))
    )
    assert np.array_equal(one, same)
    assert len(one) == 16_000 + 2 * 1600
    assert np.abs(one.astype(int) - louder).max() < 30
    assert not np.array_equal(one, other)
    assert np.std(one[:1600].astype(float)) == pytest.approx(100, rel=0.1)


def test_real_digits_are_understood_better_than_by_chance(shared_data: Callable[[str], Path]) -> None:
    audio = shared_data("fsdd") / "audio"
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    clips = [
        clip(f"{digit}_{take}", codec.decode((audio / f"{digit}_lucas_{take}.flac").read_bytes()).samples_T)
        for digit in range(10)
        for take in range(3)
    ]
    results = opened(grammar=DIGITS).transcribe_batch(clips)
    right = sum(result.text == names[k // 3] for k, result in enumerate(results))
    assert right >= 22
