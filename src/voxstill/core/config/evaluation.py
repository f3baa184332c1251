"""Options of decoding and evaluation."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from voxstill.core.config.section import Section, option
from voxstill.core.errors import ConfigError


class Decode(Section):
    """How the output of a CTC student or a transducer becomes text, in evaluation and in transcribing."""

    beam: int = option(1, unit="texts", ge=1, le=1024)
    """Texts followed side by side, rounded up to a power of two; 1 takes the likeliest token of each frame, and knows
    no language model and no phrases."""
    lm: str | None = option(None)
    """A language model in ARPA format, plain or gzipped, of words as the student writes them: `voxstill train-lm`."""
    lm_weight: float = option(0.5, unit="weight", ge=0)
    """Weight of the language model's log-probability beside the student's (0.5 is what pyctcdecode takes)."""
    word_bonus: float = option(1.5, unit="nats")
    """Added for each word where there is a language model, which likes few words (1.5 is what pyctcdecode takes)."""
    tune: bool = option(False)
    """Search for the `lm_weight` and `word_bonus` with the fewest word errors on the dev split, and judge with these;
    for CTC students."""
    boost: list[str] = option([])
    """Phrases to listen for, such as names, as the student writes them."""
    boost_weight: float = option(2.0, unit="nats", ge=0)
    """Added for each word of a phrase of `boost` in the text."""
    grammar: str | None = option(None)
    """A JSGF grammar: all sentences that are possible. The text is the likeliest of its sentences; for CTC students."""
    chunk_ms: Literal[1120, 560, 160, 80] | None = option(None, unit="ms")
    """Audio that a streaming student takes at once: long chunks make fewer errors, short ones write sooner. Null is
    560."""
    blank_penalty: float = option(0.0, unit="nats", ge=0)
    """Taken off the log-probability of the blank in each frame: fewer words are missed, and more are inserted; for CTC
    students."""

    @property
    def options_set(self) -> list[str]:
        """The options whose value is not the default."""
        default = type(self)()
        return [name for name in type(self).model_fields if getattr(self, name) != getattr(default, name)]

    @property
    def ctc_only(self) -> list[str]:
        """The options that are set and that other students than CTC ones have no search for."""
        is_set = {"grammar": self.grammar is not None, "blank_penalty": self.blank_penalty > 0}
        return [name for name in is_set if is_set[name]]

    @model_validator(mode="after")
    def _help_needs_a_choice(self) -> Self:
        """A language model and phrases choose between texts, and there must be some."""
        others = {"beam": self.beam > 1, "lm": self.lm, "boost": self.boost, "tune": self.tune}
        for name in (option_name for option_name, is_set in others.items() if self.grammar and is_set):
            raise ConfigError(
                f"`decode.grammar` and `decode.{name}` cannot be combined",
                code="option-conflict",
                why="the search in a grammar is exact and has no other hypotheses to rescore",
                fix=f"leave `decode.{name}` out, or `decode.grammar`",
            )
        for name in (option_name for option_name in ("lm", "boost") if self.beam == 1 and getattr(self, option_name)):
            raise ConfigError(
                f"`decode.{name}` has no effect with `decode.beam: 1`",
                code="option-unused",
                why="greedy search follows one hypothesis, so there is nothing to choose from",
                fix="set `decode.beam`, to 16 for example",
            )
        return self


class Evaluate(Section):
    """How a recogniser is judged."""

    split: Literal["train", "dev", "test"] = option("test")
    """Utterances judged."""
    normalizer: Literal["none", "basic", "zh", "tr", "ar", "whisper"] = option("basic")
    """What is made alike before words are compared: `basic` folds case, punctuation, digits and Unicode form."""
    texts: str | None = option(None)
    """JSONL of `id` and `text`: human words that no step but evaluation may read."""
    meetings: str | None = option(None)
    """STM or SegLST of human words with their speakers, by recording: the report has cpWER of the teacher's labels of
    these recordings."""
    bootstrap_draws: int = option(1000, unit="draws", ge=100, formerly=("resamples",))
    """Bootstrap draws of speakers for the 95 % interval."""
    lm_order: int | None = option(None, unit="words", ge=1, le=7)
    """`voxstill run` judges the student twice: without, and by a beam with n-grams of up to so many words, counted from
    the labels that it learnt from and from no other text; null: once."""
    teacher_without_grammar: int = option(100, unit="utterances", ge=0)
    """Where student and teacher have a grammar, `voxstill run` judges both without it, too: for that the teacher
    transcribes so many utterances again, slower than real time where they are noisy. 0: the student alone."""
    worst: int = option(20, unit="utterances", ge=0)
    """Utterances with most errors shown in the report, with their audio."""
