"""Writes `docs/reference/formats.md`: the files of a work folder, with every column of every table.

    python tools/formats_page.py

A column without a meaning here, or a meaning without a column, is an error. A test compares the page with what this
writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from voxstill.core.records import Alignment, Label, Utterance, Verdict
from voxstill.filtering.measures import ScoreRow
from voxstill.indexing.segment import IndexRow
from voxstill.storage import tables
from voxstill.storage.corrections import Correction
from voxstill.storage.removals import Removal
from voxstill.storage.shard_format import Sample

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import DataclassInstance

PAGE = Path(__file__).parents[1] / "docs/reference/formats.md"
HEAD = """# File formats

What voxstill writes, for programs that read it. Tables are Parquet, so any reader of Parquet opens them; audio lies in
plain tars. What it reads, manifests among it, is on the page on [sources](../sources.md). This page is written by
`tools/formats_page.py` out of the code.

## The work folder

A work folder is a folder or a prefix of a bucket. Below it a table is a folder `KIND/RECIPE` of parts. The recipe is a
hash of all options that change the content. A part is written once and never changed.

| file | what it is |
|---|---|
| `*.parquet` | the parts of the table; read those that `_manifest` names |
| `_SUCCESS.json` | the figures of the step, written last: a table without it is unfinished |
| `_manifest` | the names of the parts with their rows, sizes and checksums |

Python reads them with `voxstill.storage.tables.read`, checksums compared: see
[Python](../python.md#reading-the-tables). Times are whole milliseconds. "Or null" says where a value may be missing.
`words` are lists of `{text, start_ms, end_ms, prob}`, with times from the start of the utterance and a linear
probability or null.
"""
TAIL = """## Shards

`shards/RECIPE/00000.tar` has two members for each utterance, `KEY.flac` (or `.wav`) and `KEY.json`, in the order of the
sidecar, as WebDataset reads them. The tar is POSIX ustar; audio is 16 kHz, mono, 16 bits, lossless. The JSON has the
columns of the sidecar but those of storage (`format` to `cut_from`). `KEY` is the id, with every byte but ASCII
letters, digits, `_` and `-` as `%XX`, since WebDataset ends a key at the first dot; of a key of more than 80 characters
the first 63 stay, then `~` and a hash of the id. A tar without its sidecar is left over from a crash.

`mixtures/RECIPE` has sidecars alone, which name the tars of several corpora.

## Other files of a work folder

| file | what it is |
|---|---|
| `leases/` | who writes a table now |
| `unpacked/*.tar` | copies of compressed tars and of Parquet with audio |
| `explorer/corpus.duckdb` | the tables joined, for [`voxstill explore`](../explorer.md); made again where it is gone |
| `control.json`, `control/` | changes that were requested of running jobs, and their status |
| `logs/label/*.log` | the log of each labelling process |

## The experiment folder, results and exports

| files | page |
|---|---|
| `exp/DATE_NAME/`: metrics, checkpoints, `model/`, report | [training](../training.md#the-experiment-folder) |
| `evaluation/RESULT/`: `figures.json`, `ref.jsonl`, `hyp.jsonl` | [training](../training.md#results) |
| the export: `model.onnx`, `tokens.txt`, `export.json` | [shipping](../shipping.md#files-of-the-export) |
| transcripts: text, SRT, VTT, JSON, RTTM | [transcribing](../transcribing.md), [diarization](../diarization.md) |
| labels as JSONL, CSV, NeMo, Lhotse, Kaldi, SRT, STM or a Hugging Face folder | [filter](../filter.md) |
"""
_SPLIT = "`train`, `dev` or `test`"
_LANGUAGE = "language as the manifest says it, or null"
_INFO = {
    "language": _LANGUAGE,
    "speaker": "who speaks, or null; `RECORDING/1` where diarization says it",
    "dialect": "dialect, or null",
    "dataset": "name of the data set, or null",
}
_WORDS = "words with their times"
_ERROR = "why there is none, or null"


@dataclass(frozen=True)
class Table:
    """One kind of table: where it lies, what a row is, its columns and their meanings."""

    path: str
    row: str
    kind: type[DataclassInstance]
    meanings: Mapping[str, str]


TABLES = (
    Table(
        "recordings/RECIPE",
        "A file of audio. One that cannot be used is a row with its `error`.",
        IndexRow,
        {
            "id": "hash of the address and the etag, or of the size where there is none",
            "uri": "its address",
            "etag": "of the object, or null",
            "num_bytes": "size of the file",
            "codec": "such as `flac`, or null",
            "rate_hz": "sampling rate of the file, or null",
            "num_channels": "of the file, or null",
            "duration_ms": "as measured by decoding, or null",
            "error": "why it cannot be used, or null",
            "said": "hash of what the source said of it, or null",
            "segment_errors": "why some of its segments or channels cannot be used",
            "content_hash": "XXH3 of the bytes of the file, or null",
            "clipped": "share of samples at full scale, of the channel that has most; or null",
            "dc_offset": "mean of the samples as a share of full scale, of the worst channel; or null",
            "origin": "the compressed tar or Parquet file that it was unpacked from, or null",
            "louder_channel": "the channel that is taken where the mix would cancel out, or null",
            "untimed": "why word times of some of its utterances are not used, or null",
            "speaker_doubts": "why diarization gave no speakers, or doubtful ones; or null",
            "unused": "utterances that the source names and the index cannot use, or null",
            "removed": "where its utterances are that were left out as they had been removed, or null",
        },
    ),
    Table(
        "utterances/RECIPE",
        "A segment of a channel of a recording.",
        Utterance,
        {
            "id": "of the manifest, or a hash of recording, channel and times",
            "recording_id": "`id` of its recording",
            "uri": "address of the recording",
            "channel": "from 0; null mixes all channels",
            "start_ms": "start in the recording",
            "end_ms": "end in the recording",
            "split": _SPLIT,
            **_INFO,
            "text": "human transcript, or null",
            "gain_db": "gain that is applied wherever the audio is read, or null",
            "weight": "factor of its loss as the manifest says it; null is 1",
            "supervised": "true where `text` is its label and no teacher is asked, or null",
            "words": f"{_WORDS} of the manifest, or null",
        },
    ),
    Table(
        "labels/RECIPE",
        "What one teacher transcribed of an utterance. A failure is a row with its `error`.",
        Label,
        {
            "utterance_id": "`id` of the utterance",
            "recipe": "of the table",
            "teacher": "name and revision, as `NAME@REVISION`",
            "text": "the transcript",
            "language": "language that the teacher detected or was told, or null",
            "mean_logprob": "mean log-probability of a token, or null",
            "num_tokens": "tokens of the text, 0 where the teacher has none",
            "finish": "`stop`, `length` (cut at the longest answer) or `failed`",
            "words": f"{_WORDS}; empty where the teacher has none",
            "error": _ERROR,
            "audio": "hash of the audio, text and language that the teacher was shown, or null",
        },
    ),
    Table(
        "alignments/RECIPE",
        "How well a label fits its audio, by forced alignment with a CTC model.",
        Alignment,
        {
            "utterance_id": "`id` of the utterance",
            "text": "the text that was aligned",
            "logprob": "mean log-probability of a token of the text, or null",
            "error": "why there is no audio, or null",
            "words": f"{_WORDS}, where the teacher gave none; or null",
        },
    ),
    Table(
        "scores/RECIPE",
        "What was measured of a label; the [rules of the filter](../filter.md) look at nothing else.",
        ScoreRow,
        {
            "utterance_id": "`id` of the utterance",
            "split": _SPLIT,
            "duration_ms": "of the utterance",
            "finished": "whether the teacher ended by itself",
            "characters": "characters of the normalized text",
            "words": "words of the normalized text; a character is a word in scripts without spaces",
            "longest_word": "characters of the longest word",
            "min_frames": "frames that CTC needs for the words: one for each, one more between equal ones",
            "repeats": "how often a phrase of one to four words is repeated in a row",
            "compression_ratio": "size of the text over its compressed size",
            "known_phrase": "whether it is a phrase that teachers hallucinate",
            "other_language": "whether the teacher heard another language than the manifest says",
            "mean_logprob": "of the label, or null",
            "disagreement": "share of words that a second teacher transcribed differently, or null",
            "alignment": "`logprob` of its alignment, or null",
            "reference_words": "words of the human text, or null",
            "errors": "word errors of the label against the human text, or null",
            "part": "identity of the parts that it was measured in, or null",
        },
    ),
    Table(
        "verdicts/RECIPE",
        "Whether the filter keeps a label.",
        Verdict,
        {
            "utterance_id": "`id` of the utterance",
            "recipe": "of the labels",
            "kept": "whether it is kept",
            "reason": "the rule that dropped it, or null",
        },
    ),
    Table(
        "shards/RECIPE",
        "A sidecar: one row for each sample of the tar of the same number.",
        Sample,
        {
            "id": "of the utterance, or of the part that was cut from it",
            "split": _SPLIT,
            "duration_ms": "length",
            "num_samples": "length at 16 kHz",
            "text": "what the student learns",
            "words": f"{_WORDS}; empty where there are none",
            "reference": "human transcript, or null",
            "teacher": "name and revision of the teacher, or null",
            **_INFO,
            "weight": "factor of its loss",
            "format": "of the stored audio, such as `flac`",
            "tar": "address or key of the tar where it is not the one beside the sidecar, or null",
            "offset": "first byte of the audio in the tar",
            "num_bytes": "bytes of the audio",
            "crc32": "CRC-32 of these bytes; null in shards of version 0.1",
            "cut_from": "`id` of the utterance that it was cut from, or null",
        },
    ),
    Table(
        "corrections",
        "A judgement of a label in `voxstill explore --edit`.",
        Correction,
        {
            "utterance_id": "`id` of the utterance",
            "audio": "hash of its audio",
            "judgement": "`right`, `wrong`, `corrected` or `withdrawn`, which takes back the one before",
            "label": "the text that was judged",
            "text": "what is spoken, where the judgement is `corrected`; or null",
            "time": "UTC, ISO 8601",
            "judge": "who judged",
        },
    ),
    Table(
        "removed",
        "An utterance or a recording that `voxstill remove` took out; later tables leave it out.",
        Removal,
        {
            "id": "of the utterance or of the recording",
            "uri": "address of the recording",
            "channel": "from 0; null mixes all channels",
            "start_ms": "start in the recording",
            "end_ms": "end in the recording; null where all of it was removed",
            "time": "UTC, ISO 8601",
            "reason": "as `--reason` says it, or null",
            "content": "hash of the bytes of the recording, or null",
        },
    ),
)


def page() -> str:
    """The page, as Markdown; ValueError where meanings and columns are not the same."""
    return "\n".join([HEAD, *(line for table in TABLES for line in _section(table)), TAIL])


def _section(table: Table) -> Iterator[str]:
    schema = tables.schema(table.kind)
    if set(schema.names) != set(table.meanings):
        raise ValueError(f"{table.path}: only a column, or only a meaning: {set(schema.names) ^ set(table.meanings)}")
    yield from (f"### `{table.path}`", "", table.row, "", "| column | type | meaning |", "|---|---|---|")
    yield from (f"| `{field.name}` | {_type(field)} | {table.meanings[field.name]} |" for field in schema)
    yield ""


def _type(field: pa.Field) -> str:
    inner = getattr(field.type, "value_type", None)
    if inner is None:
        return str(field.type)
    return f"list of {inner}" if not str(inner).startswith("struct") else "list of structs"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else PAGE).write_text(page(), encoding="utf-8")
