"""Text becomes tokens and tokens the same text: vocabularies made from the corpus itself.

`▁` marks the piece that begins a word, so pieces put together spell the text with its spaces. Piece 0 is `<unk>`; the
CTC blank comes after the last piece, where Parakeet has it.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from voxstill.errors import DataError
from voxstill.records import Word

UNKNOWN = "<unk>"
BLANK = "<pad>"
START = "▁"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The pieces a student spells with; ids are positions, `blank_id` the one after the last."""

    unit: Literal["word", "character"]
    pieces: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", {piece: i for i, piece in enumerate(self.pieces)})

    @property
    def blank_id(self) -> int:
        """The id of the CTC blank."""
        return len(self.pieces)

    def encode(self, text: str, words: Sequence[Word] = ()) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of `text` and start and end of each in milliseconds, (-1, -1) without word times.

        Times are used where `words` spell `text`; within a word they are shared out evenly over its characters.
        """
        spoken = text.split()
        timed = words if [word.text for word in words] == spoken else ()
        ids: list[int] = []
        times: list[tuple[int, int]] = []
        for i, word in enumerate(spoken):
            pieces = self._pieces_of(word)
            ids += [self._ids.get(piece, 0) for piece in pieces]
            if timed:
                start, end = timed[i].start_ms, timed[i].end_ms
                cuts = [start + (end - start) * j // len(pieces) for j in range(len(pieces) + 1)]
                times += list(itertools.pairwise(cuts))
            else:
                times += [(-1, -1)] * len(pieces)
        return ids, times

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; blanks must be gone already."""
        return "".join(self.pieces[i] for i in ids).replace(START, " ").strip()

    def _pieces_of(self, word: str) -> list[str]:
        return [START + word] if self.unit == "word" else [START + word[0], *word[1:]]

    def save(self, folder: Path, features: Mapping[str, Any], kind: Literal["ctc", "rnnt"] = "ctc") -> None:
        """Write the processor that `transformers` loads with `AutoProcessor`: this vocabulary and `features`.

        `kind` says how it decodes: by CTC, or by a transducer, which keeps repeats.
        """
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import ParakeetTokenizer

        ids = {**self._ids, BLANK: self.blank_id}
        tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
        split: Any = pre_tokenizers.Metaspace(START, prepend_scheme="always", split=True)
        if self.unit == "character":
            split = pre_tokenizers.Sequence([split, pre_tokenizers.Split(Regex(f"{START}?."), "isolated")])
        tokenizer.pre_tokenizer = split
        tokenizer.decoder = decoders.Metaspace(START, prepend_scheme="always", split=True)
        wrapped = ParakeetTokenizer(tokenizer_object=tokenizer, unk_token=UNKNOWN, pad_token=BLANK)
        wrapped.save_pretrained(folder)
        processor = {
            "processor_class": "ParakeetProcessor",
            "decoder_type": kind,  # else a CTC student may be taken for a transducer and keep repeats
            **({} if kind == "ctc" else {"blank_token": BLANK}),
            "feature_extractor": dict(features),
        }
        # by hand: older versions make a feature extractor only where librosa is installed
        (folder / "processor_config.json").write_text(json.dumps(processor, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> Vocabulary:
        """The vocabulary of a student's folder; DataError where there is none."""
        try:
            model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
            ids: dict[str, int] = model["vocab"]
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"`{folder}` holds no student's vocabulary",
                why=f"tokenizer.json: {error}",
                fix="give the `model` folder of an experiment, or the experiment folder itself",
            ) from None
        pieces = sorted((piece for piece in ids if piece != BLANK), key=ids.__getitem__)
        return Vocabulary("character" if all(len(p.lstrip(START)) <= 1 for p in pieces[1:]) else "word", tuple(pieces))


def train(texts: Iterable[str], units: Literal["auto", "word", "character"], max_words: int) -> Vocabulary:
    """The vocabulary of the texts: every word or every character in them, the most frequent first.

    `auto` takes words where at most `max_words` different ones occur.
    """
    words = Counter(word for text in texts for word in text.split())
    if not words:
        raise DataError(
            "there is no text to make a vocabulary from",
            why="every label of the training split is empty",
            fix="look at the labels: voxstill filter WORK --json",
        )
    if units == "word" or (units == "auto" and len(words) <= max_words):
        ranked = [START + word for word, _ in sorted(words.items(), key=lambda item: (-item[1], item[0]))]
        return Vocabulary("word", (UNKNOWN, *ranked))
    characters: Counter[str] = Counter()
    for word, count in words.items():
        characters[START + word[0]] += count
        for character in word[1:]:
            characters[character] += count
    ranked = [piece for piece, _ in sorted(characters.items(), key=lambda item: (-item[1], item[0]))]
    return Vocabulary("character", (UNKNOWN, *ranked))
