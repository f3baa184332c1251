"""Exported students: what `export.json` says of the ONNX files beside it, and their vocabulary; without torch."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from voxstill.core.errors import DataError, first_line
from voxstill.core.records import fingerprint
from voxstill.core.result import Result
from voxstill.decoding import checkpoint_files
from voxstill.text.pieces import PieceVocabulary
from voxstill.text.tokenizer import START

MANIFEST, TOKENS, TOKENIZER = "export.json", "tokens.txt", "tokenizer.json"
CTC, CTC_SAMPLES = "model.onnx", "model.samples.onnx"
ENCODER, ENCODER_SAMPLES = "encoder.onnx", "encoder.samples.onnx"
DECODER, JOINER = "decoder.onnx", "joiner.onnx"
_FILES = ("*.json", "*.txt", "*.onnx")
BLANK = "<blk>"
"""The blank in `tokens.txt`, as sherpa-onnx and onnx-asr ask for it."""
Kind = Literal["ctc", "rnnt", "tdt"]
Input = Literal["log_mels", "samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel(Result):
    """What `export.json` says of an exported student."""

    kind: Kind
    input: Input
    """What the main model takes: log-mels as they are, or a waveform."""
    normalization: str | None
    """`student.normalization` where the input is log-mels; the graph does it."""
    num_mels: int | None
    frame_ms: int
    """Length of an output frame."""
    min_samples: int
    """Fewer samples have no output frame."""
    blank_id: int
    delimiter_id: int | None
    """The token between words, of models that have one."""
    special_ids: Sequence[int]
    """Tokens that are not text: the blank, the unknown token and their like."""
    durations: Sequence[int]
    """The durations in frames that a TDT student chooses from."""
    num_parameters: int
    model: str
    """The experiment or model folder that was exported, by its name."""
    weights: str
    """A hash of the files of that model."""
    gate: Mapping[str, Any]
    """What was compared before the folder was written."""
    versions: Mapping[str, str]
    files: Mapping[str, str]
    """SHA-256 of each file."""
    chunks_ms: Sequence[int] = ()
    """Chunk sizes of a streaming student: it has an encoder for each, the first by default."""
    sum: str | None = None
    """A hash of all that stands above; None of an export of an earlier version."""

    @property
    def revision(self) -> str:
        """A hash of what is computed: of all files but those for people."""
        return fingerprint(*sorted(f"{name} {digest}" for name, digest in self.files.items() if name != "README.md"))

    @property
    def main(self) -> str:
        """The file that is loaded where a folder is named."""
        if self.chunks_ms:
            return chunk_encoder(self.chunks_ms[0])
        return CTC if self.kind == "ctc" else ENCODER

    def chunk_ms(self, file: str) -> int:
        """The chunk size of an encoder of a streaming student."""
        names = {name: ms for ms in self.chunks_ms for name in (chunk_encoder(ms), int8_of(chunk_encoder(ms)))}
        return names[file]

    @property
    def mains(self) -> Sequence[str]:
        """All files that can be loaded."""
        fp32 = {CTC, ENCODER, *map(chunk_encoder, self.chunks_ms)}
        return sorted(name for name in self.files if name in fp32 or name in set(map(int8_of, fp32)))


def chunk_encoder(chunk_ms: int) -> str:
    """The encoder of a streaming student for chunks of a length."""
    return f"encoder.{chunk_ms}ms.onnx"


def int8_of(name: str) -> str:
    """The file with the int8 weights of a file."""
    return f"{name.removesuffix('.onnx')}.int8.onnx"


def locate(model: str, revision: str | None = None) -> tuple[Path, str | None] | None:
    """The folder of an exported student and, where a file in it is named, that file; None of anything else.

    One on the Hugging Face Hub, `owner/name` or `owner/name@revision`, is fetched. DataError if it cannot be.
    """
    if checkpoint_files.on_hub(model):
        folder_on_hub = _fetched(model, revision)
        return None if folder_on_hub is None else (folder_on_hub, None)
    path = Path(model)
    folder, file = (path.parent, path.name) if path.suffix == ".onnx" else (path, None)
    return (folder, file) if (folder / MANIFEST).is_file() else None


@functools.cache
def _fetched(model: str, revision: str | None) -> Path | None:
    """The folder of a name on the Hub, fetched; None if it holds another kind of model."""
    commit = checkpoint_files.fetch(model, revision, (MANIFEST,))
    if not (commit / MANIFEST).is_file():
        return None
    name, _ = checkpoint_files.split_revision(model, revision)
    return checkpoint_files.fetch(name, commit.name, _FILES)


def read(folder: Path) -> ExportedModel:
    """Read `export.json` of a folder; DataError if it is not what was written."""
    try:
        document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        exported = ExportedModel.from_dict(document)
        if exported.sum is not None and exported.sum != sum_of(document):
            raise ValueError("it does not match its checksum")
        return exported
    except (OSError, ValueError, RecursionError, AttributeError, DataError) as error:
        raise DataError(
            f"`{folder / MANIFEST}` was changed or damaged",
            code="export-broken",
            why=error.why if isinstance(error, DataError) else first_line(error),
            fix="export the student again into another folder",
        ) from None


def sum_of(document: Mapping[str, object]) -> str:
    """A hash of what `export.json` says, but for the hash itself."""
    rest = {key: value for key, value in document.items() if key != "sum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def faults(folder: Path, exported: ExportedModel, names: Collection[str] | None = None) -> dict[str, str]:
    """The files, of those named or of all, that are not what `export.json` says, and why."""
    reasons = {}
    for name in exported.files if names is None else names:
        path = folder / name
        if not path.is_file():
            reasons[name] = "it is missing"
        elif digest(path) != exported.files.get(name):
            reasons[name] = "its bytes do not match its checksum"
    return reasons


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def vocabulary(folder: Path, exported: ExportedModel) -> PieceVocabulary:
    """The vocabulary of `tokens.txt`; DataError if it is not what was written."""
    try:
        for name, fault in faults(folder, exported, {TOKENS, TOKENIZER} & {*exported.files}).items():
            raise ValueError(f"`{name}`: {fault}")
        lines = (folder / TOKENS).read_text(encoding="utf-8").split("\n")[:-1]
        symbols = [line.rpartition(" ")[0] for line in lines]
        if [line.rpartition(" ")[2] for line in lines] != [str(i) for i in range(len(lines))] or not symbols:
            raise ValueError("its token ids are not its line numbers")
    except (OSError, ValueError) as error:
        raise DataError(
            f"`{folder / TOKENS}` contains no vocabulary",
            code="export-broken",
            why=first_line(error),
            fix="export the student again into another folder",
        ) from None
    special_ids = set(exported.special_ids)
    pieces = ["" if i in special_ids else symbol for i, symbol in enumerate(symbols)]
    ids = {piece: i for i, piece in enumerate(pieces) if piece}
    path = folder / TOKENIZER
    characters = exported.delimiter_id is not None or not path.is_file()
    encode = functools.partial(_characters, ids) if characters else functools.partial(_tokenized, path.absolute(), ids)
    return PieceVocabulary(pieces, exported.blank_id, exported.delimiter_id, encode)


def _characters(ids: Mapping[str, int], text: str) -> list[int]:
    """One token for each character; one that is not there has an id beyond all others."""
    return [ids.get(START if character == " " else character, len(ids) + 1_000_000) for character in text]


def _tokenized(path: Path, ids: Mapping[str, int], text: str) -> list[int]:
    tokens: list[str] = _tokenizer(path).encode(text, add_special_tokens=False).tokens
    return [ids.get(token, len(ids) + 1_000_000) for token in tokens]


@functools.lru_cache(maxsize=4)
def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))
