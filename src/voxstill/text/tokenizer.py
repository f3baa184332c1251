"""Tokenizers trained on the corpus: words, characters or byte pairs; text to token ids and back.

`▁` marks the piece that begins a word, so concatenated pieces are the text with its spaces. Piece 0 is `<unk>`; the CTC
blank comes after the last piece, as in Parakeet.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from voxstill.core import scratch
from voxstill.core.config import CHUNKS_MS, DEFAULT_CHUNK_MS, lookahead
from voxstill.core.errors import DataError, first_line
from voxstill.core.records import Word

UNKNOWN = "<unk>"
BLANK = "<pad>"
START = "▁"
_LOG_MELS = ("ParakeetFeatureExtractor", "NemotronAsrStreamingFeatureExtractor")
"""Feature extractors of the models that Parakeet's processor is for."""
Unit = Literal["word", "character", "bpe"]
_BPE_WORDS = 5_000_000  # BPE is trained on at most so many words; counts of a larger corpus are scaled down


class Tokenizer(Protocol):
    """What a tokenizer of a student offers."""

    @property
    def unit(self) -> str:
        """What a piece is: a word, a character, a byte pair."""
        ...

    @property
    def pieces(self) -> Sequence[str]:
        """All pieces, by id."""
        ...

    @property
    def key(self) -> tuple[object, ...]:
        """Cache key: equal for tokenizers that give the same ids."""
        ...

    def encode(self, text: str, words: Sequence[Word] = ()) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of the text, and start and end of each in milliseconds, (-1, -1) where unknown."""
        ...

    def save(self, folder: Path, features: Mapping[str, Any], kind: str) -> None:
        """Write the processor that `transformers` loads with `AutoProcessor`."""
        ...


@dataclass(frozen=True)
class Vocabulary:
    """The pieces of a tokenizer; ids are positions, `blank_id` the one after the last.

    `merges` are the BPE merges, in order, where the unit is `bpe`.
    """

    unit: Unit
    pieces: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def _ids(self) -> Mapping[str, int]:
        return {piece: i for i, piece in enumerate(self.pieces)}

    @property
    def key(self) -> tuple[object, ...]:
        """Cache key: equal for tokenizers that give the same ids."""
        return self.unit, self.pieces, self.merges

    @property
    def blank_id(self) -> int:
        """The id of the CTC blank."""
        return len(self.pieces)

    def encode(self, text: str, words: Sequence[Word] = ()) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of `text` and start and end of each in milliseconds, (-1, -1) without word times.

        Times are used where `words` are the words of `text`; within a word they are divided evenly over its characters.
        Characters that were not in the corpus are `<unk>`.
        """
        text_words = text.split()
        timed_words = words if [word.text for word in words] == text_words else ()
        ids: list[int] = []
        times: list[tuple[int, int]] = []
        for i, word in enumerate(text_words):
            pieces = self._pieces_of(word)
            ids += [self._ids.get(piece, 0) for piece in pieces]
            if timed_words:
                start, end = timed_words[i].start_ms, timed_words[i].end_ms
                ends = [0, *itertools.accumulate(max(len(piece.lstrip(START)), 1) for piece in pieces)]
                boundaries_ms = [start + (end - start) * num_characters // ends[-1] for num_characters in ends]
                times += list(itertools.pairwise(boundaries_ms))
            else:
                times += [(-1, -1)] * len(pieces)
        return ids, times

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids without blanks."""
        return "".join(self.pieces[i] for i in ids).replace(START, " ").strip()

    def _pieces_of(self, word: str) -> Sequence[str]:
        if self.unit == "bpe":
            return tuple(token.value for token in self._model.tokenize(START + word))
        return [START + word] if self.unit == "word" else [START + word[0], *word[1:]]

    @functools.cached_property
    def _model(self) -> Any:
        """The model of this vocabulary in the library `tokenizers`."""
        from tokenizers import models

        ids = {**self._ids, BLANK: self.blank_id}
        if self.unit == "bpe":
            return models.BPE(ids, list(self.merges), unk_token=UNKNOWN, fuse_unk=True)
        return models.WordLevel(ids, unk_token=UNKNOWN)

    def save(self, folder: Path, features: Mapping[str, Any], kind: str = "ctc") -> None:
        """Write the processor that `transformers` loads with `AutoProcessor`: this vocabulary and `features`.

        `kind` is how it decodes: `ctc`, or a transducer, which keeps repeats, or `streaming`, one that streams.
        """
        from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
        from transformers import ParakeetTokenizer

        tokenizer = Tokenizer(self._model)
        split: Any = pre_tokenizers.Metaspace(START, prepend_scheme="always", split=True)
        if self.unit == "character":
            split = pre_tokenizers.Sequence([split, pre_tokenizers.Split(Regex(f"{START}?."), "isolated")])
        tokenizer.pre_tokenizer = split
        tokenizer.decoder = decoders.Metaspace(START, prepend_scheme="always", split=True)
        wrapped = ParakeetTokenizer(tokenizer_object=tokenizer, unk_token=UNKNOWN, pad_token=BLANK)
        wrapped.save_pretrained(folder)
        processor: dict[str, Any] = {"processor_class": "Wav2Vec2Processor", "feature_extractor": dict(features)}
        if features["feature_extractor_type"] in _LOG_MELS:
            processor |= {
                "processor_class": "ParakeetProcessor",
                "decoder_type": kind,  # else a CTC student may be taken for a transducer and keep repeats
                **({} if kind == "ctc" else {"blank_token": BLANK}),
            }
        if kind == "streaming":
            processor = {
                "processor_class": "NemotronAsrStreamingProcessor",
                "feature_extractor": dict(features),
                "blank_token": BLANK,
                "default_num_lookahead_tokens": lookahead(DEFAULT_CHUNK_MS),
                "supported_num_lookahead_tokens": [lookahead(ms) for ms in CHUNKS_MS],
            }
        # written here: older versions of transformers create a feature extractor only where librosa is installed
        (folder / "processor_config.json").write_text(json.dumps(processor, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> Vocabulary:
        """Read the vocabulary of a student's folder; DataError if there is none, or one of another layout."""
        try:
            model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
            ids: dict[str, int] = model["vocab"]
            pieces = tuple(sorted((piece for piece in ids if piece != BLANK), key=lambda piece: ids[piece]))
            if ids.get(BLANK) != len(pieces) or ids.get(UNKNOWN) != 0:
                raise ValueError(f"`{UNKNOWN}` is not the first of its pieces, or `{BLANK}` is not the last")
            pairs = (m.split(" ") if isinstance(m, str) else m for m in model.get("merges", ()))
            merges = tuple((left, right) for left, right in pairs)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"`{folder}` contains no vocabulary of a student",
                code="no-model",
                why=f"tokenizer.json: {error}",
                fix="give the `model` folder of an experiment, or the experiment folder itself",
            ) from None
        if merges:
            return Vocabulary("bpe", pieces, merges)
        return Vocabulary("character" if all(len(p.lstrip(START)) <= 1 for p in pieces[1:]) else "word", pieces)


def from_checkpoint(checkpoint: str) -> Vocabulary:
    """Read the vocabulary of a checkpoint, a folder or a name on the Hub; DataError if it has another layout."""
    if Path(checkpoint).is_dir():
        return Vocabulary.load(Path(checkpoint))
    from transformers import AutoTokenizer

    with scratch.folder() as folder:
        try:
            AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False).save_pretrained(folder)
        except Exception as error:  # any, of a file that others have written
            raise DataError(
                f"`{checkpoint}` has no vocabulary",
                code="no-model",
                why=first_line(error),
                fix="set other `student.units`",
            ) from None
        return Vocabulary.load(Path(folder))


def train(
    texts: Iterable[str],
    units: Literal["auto", "word", "character", "bpe"],
    max_words: int,
    *,
    bpe_pieces: int = 512,
    fallback: Literal["character", "bpe"] = "character",
) -> Vocabulary:
    """Train a vocabulary on texts: every word or every character in them, the most frequent first, or byte pairs.

    `auto` takes words where at most `max_words` different ones occur, and `fallback` where there are more.
    """
    words = Counter(word for text in texts for word in text.split())
    if not words:
        raise DataError(
            "there is no text to make a vocabulary from",
            code="no-words",
            why="every label of the training split is empty",
            fix="check the labels: voxstill filter WORK --json",
        )
    if units == "auto":
        units = "word" if len(words) <= max_words else fallback
    if units == "word":
        return Vocabulary("word", (UNKNOWN, *_by_count({START + word: count for word, count in words.items()})))
    if units == "bpe":
        return _byte_pairs(words, bpe_pieces)
    characters: Counter[str] = Counter()
    for word, count in words.items():
        characters[START + word[0]] += count
        for character in word[1:]:
            characters[character] += count
    return Vocabulary("character", (UNKNOWN, *_by_count(characters)))


def _by_count(counts: Mapping[str, int]) -> list[str]:
    return [piece for piece, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _byte_pairs(words: Mapping[str, int], num_pieces: int) -> Vocabulary:
    """Byte pair encoding (Sennrich et al. 2016, section 3.2) over whole words; equal counts give equal pieces."""
    from tokenizers import Tokenizer, models, trainers

    scale = max(1.0, sum(words.values()) / _BPE_WORDS)
    ranked = sorted(words.items())
    repeated = (START + word for word, count in ranked for _ in range(math.ceil(count / scale)))
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, fuse_unk=True))
    trainer = trainers.BpeTrainer(vocab_size=num_pieces, special_tokens=[UNKNOWN], show_progress=False)
    tokenizer.train_from_iterator(repeated, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return Vocabulary("bpe", tuple(pieces), tuple((left, right) for left, right in model["merges"]))
