"""Tokenizers that come with checkpoints: Whisper's, with its special tokens, and those of CTC and transducer models."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from voxstill.core.errors import ConfigError, DataError, first_line
from voxstill.core.records import Word
from voxstill.text.pieces import PieceVocabulary
from voxstill.text.tokenizer import START

LANGUAGES_FROM = 51_865
"""Whisper vocabularies of this size or more are multilingual and have language tokens."""


class WhisperTokenizer:
    """Whisper's tokenizer; `prefix` are the tokens before every text, `end_id` is the one that ends it.

    DataError if the checkpoint, a folder or a name on the Hub, has no Whisper tokenizer; ConfigError if it is
    multilingual and no language is set, or one that it does not know.
    """

    unit = "piece"

    def __init__(self, checkpoint: str, language: str | None, vocab_size: int) -> None:
        from transformers import WhisperTokenizerFast

        try:
            tokenizer = WhisperTokenizerFast.from_pretrained(checkpoint, local_files_only=Path(checkpoint).is_dir())
            tokenizer("a")
        except Exception as error:  # any, of files that others have written
            raise _no_whisper(checkpoint, error) from None
        language = language or tokenizer.language  # that of a student is stored with it
        if language is None and vocab_size >= LANGUAGES_FROM:
            raise ConfigError(
                "`student.language` is not set",
                code="option-missing",
                why=f"`{checkpoint}` is multilingual and needs the language of the audio",
                fix="set `student.language`, to `en` for example",
            )
        try:
            tokenizer.set_prefix_tokens(language, "transcribe" if language else None, False)
        except ValueError as error:
            raise ConfigError(
                f"`student.language` is `{language}`", code="language-unknown", why=str(error), fix="name another"
            ) from None
        except Exception as error:  # that of another model knows no such tokens
            raise _no_whisper(checkpoint, error) from None
        self._tokenizer: Any = tokenizer
        self.prefix: tuple[int, ...] = tuple(tokenizer.prefix_tokens)
        self.end_id: int = tokenizer.eos_token_id

    @functools.cached_property
    def pieces(self) -> Sequence[str]:
        """All pieces, by id."""
        return self._tokenizer.convert_ids_to_tokens(range(len(self._tokenizer)))  # type: ignore[no-any-return]

    @property
    def key(self) -> tuple[object, ...]:
        """Cache key: equal for tokenizers that give the same ids."""
        return self._tokenizer.backend_tokenizer.to_str(), self.prefix

    def encode(self, text: str, words: Sequence[Word] = ()) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of the text, without prefix and end; word times are not used."""
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids, [(-1, -1)] * len(ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def save(self, folder: Path, features: Mapping[str, Any], kind: str) -> None:
        """Write the processor that `transformers` loads with `AutoProcessor`; the language is saved with it."""
        settings = {"language": self._tokenizer.language, "task": self._tokenizer.task}
        self._tokenizer.init_kwargs.update({name: value for name, value in settings.items() if value is not None})
        self._tokenizer.save_pretrained(folder)
        processor = {"processor_class": "WhisperProcessor", "feature_extractor": dict(features)}
        (folder / "processor_config.json").write_text(json.dumps(processor, indent=1) + "\n", encoding="utf-8")


def _no_whisper(checkpoint: str, error: Exception) -> DataError:
    return DataError(
        f"`{checkpoint}` contains no Whisper tokenizer",
        code="no-model",
        why=first_line(error),
        fix="give a folder with tokenizer.json, or a name on the Hugging Face Hub",
    )


class CheckpointVocabulary(PieceVocabulary):
    """The vocabulary of a CTC or transducer checkpoint. DataError if the folder has no tokenizer."""

    def __init__(self, folder: Path, blank_id: int, vocab_size: int) -> None:
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            num_pieces = min(len(tokenizer), vocab_size)
            pieces: list[str | None] = tokenizer.convert_ids_to_tokens(list(range(num_pieces)))
            special_ids = {*tokenizer.all_special_ids, blank_id}
            tokenizer("a")
        except Exception as error:  # any, of files that others have written
            raise DataError(
                f"`{folder}` contains no vocabulary of a student",
                code="no-model",
                why=first_line(error),
                fix="give a folder with the tokenizer that the model was trained with",
            ) from None
        delimiter = getattr(tokenizer, "word_delimiter_token", None)
        texts = [
            START if piece == delimiter else "" if piece is None or i in special_ids else piece
            for i, piece in enumerate(pieces)
        ]
        if getattr(tokenizer, "do_lower_case", False):
            texts = [piece.lower() for piece in texts]

        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
            return ids

        delimiter_id = None if delimiter is None else tokenizer.convert_tokens_to_ids(delimiter)
        self.names = tuple(piece or "" for piece in pieces)
        """The tokens by id as the tokenizer calls them, special ones included; ids beyond the tokenizer have none."""
        super().__init__((*texts, *[""] * (vocab_size - num_pieces)), blank_id, delimiter_id, encode)
