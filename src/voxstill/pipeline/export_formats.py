"""Labels in the formats of other tools: manifests, NeMo, lhotse, Parquet for `datasets`, Kaldi and subtitles."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import chain, groupby, islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TextIO

from voxstill.core.errors import DataError
from voxstill.core.records import Word
from voxstill.indexing.formats.column_names import INFO_COLUMNS
from voxstill.pipeline.exported import ExportedLabel, ExportedLabels, one_line, transcript_segments
from voxstill.storage.redaction import redact_uri
from voxstill.storage.uri import is_local, split_range
from voxstill.text import subtitles

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 4096
"""Of a row group of Parquet."""
SPLITS_OF_DATASETS = {"train": "train", "dev": "validation", "test": "test"}
"""What the library `datasets` calls a split."""
DATASETS_FILES = tuple(f"{name}.parquet" for name in SPLITS_OF_DATASETS.values())
COLUMNS = ("id", "audio", "start_ms", "end_ms", "channel", "text", *INFO_COLUMNS, "split", "weight", "teacher")
"""Columns of our own manifests; those of scores and verdicts follow."""
KALDI_FILES = ("wav.scp", "segments", "text", "utt2spk", "spk2utt", "utt2lang")
"""Files of the Kaldi data directory; `utt2lang` is there where all languages are known."""
_NOT_IN_ID = re.compile(r"[\s\x00-\x1f\x7f-\x9f=/]")
_NOT_IN_SPEAKER = re.compile(r"[\s\x00-\x2d\x7f-\x9f=/]")
"""Beside these all that sorts before `-`: ids must sort as their speakers do, and `-` ends the speaker in an id."""
_OPENED_OTHERWISE = re.compile(r"\||:\d+$|[\x00-\x1f\x7f]|^\s|\s$")
"""What Kaldi would run as a command, take for an offset or for two lines, or strip."""
_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
"""Controls and line ends that JSON may hold as they are, and that terminals and `splitlines` act upon."""


def file_error(row: ExportedLabel, *, local: bool = True, mono: bool = True, whole: bool = False) -> str | None:
    """Why a tool that opens files by their names cannot read the audio of a label; None if it can.

    Of such tools those with `local` open no addresses, those with `mono` no recordings of several channels, and those
    with `whole` no stretches of a recording. None of them reads a member of a tar in place or mixes channels.
    """
    utterance = row.utterance
    if split_range(utterance.uri)[1] is not None:
        return "it is a part of another file, such as a member of a tar"
    if local and not is_local(utterance.uri):
        return "it is not on this machine"
    if (row.recording.num_channels or 1) > 1 and (mono or utterance.channel is None):
        return "its recording has several channels"
    return "it is a segment of a longer recording" if whole and not row.is_whole else None


def unreadable(form: str, row: ExportedLabel, why: str) -> DataError:
    """The error of a label that a format has no way to write."""
    return DataError(
        f"`--format {form}` cannot refer to the audio of `{row.utterance.id}`: `{redact_uri(row.utterance.uri)}`",
        code="export-format",
        why=why,
        fix="use `--format jsonl`, or the tars of `voxstill shard`: each utterance is a file in them, with its text",
    )


def dump_json(row: Mapping[str, object]) -> str:
    """A JSON object on one line, whichever characters a reader takes for the end of a line."""
    return json.dumps(row, ensure_ascii=False).translate(_ESCAPED)


def file_name(stem: str) -> str:
    """A name for a file without its ending: no folders, no control characters and nothing that a file system refuses.

    Empty if nothing else is left; two stems may have one name.
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f/\\:*?\"<>|]", "_", stem).strip(". ").encode()[:200].decode("utf-8", "ignore")


def manifest_row(row: ExportedLabel) -> dict[str, object]:
    """A label by the columns of our own manifests."""
    utterance = row.utterance
    return {
        "id": utterance.id,
        "audio": row.path,
        "start_ms": utterance.start_ms,
        "end_ms": utterance.end_ms,
        "channel": utterance.channel,
        "text": row.label.text,
        **{name: getattr(utterance.info, name) for name in INFO_COLUMNS},
        "language": row.language,
        "split": utterance.split,
        "weight": utterance.weight,
        "teacher": row.label.teacher,
        **row.more,
    }


def write_jsonl(labels: ExportedLabels, file: TextIO) -> None:
    """Our own manifest as JSONL, with word times; what is not known is left out."""
    for row in labels.rows:
        columns = {**manifest_row(row), "words": _timed_words(row) or None}
        print(dump_json({name: value for name, value in columns.items() if value is not None}), file=file)


def _timed_words(row: ExportedLabel) -> list[dict[str, object]]:
    """The words of a label by the columns of our own manifests, in times of the recording."""
    words = (word.shifted(row.utterance.start_ms) for word in row.label.words)
    return [{"word": word.text, "start_ms": word.start_ms, "end_ms": word.end_ms} for word in words]


def write_csv(labels: ExportedLabels, file: TextIO) -> None:
    """Our own manifest as CSV (RFC 4180); what is not known is an empty cell."""
    writer = csv.DictWriter(file, [*COLUMNS, *(field.name for field in labels.more)])
    writer.writeheader()
    writer.writerows(map(manifest_row, labels.rows))


def write_nemo(labels: ExportedLabels, file: TextIO) -> None:
    """NeMo's manifest: `offset` and `duration` in seconds. DataError if NeMo cannot open the audio."""
    for row in labels.rows:
        if why := file_error(row):
            raise unreadable("nemo", row, why)
        columns = {
            "audio_filepath": row.path,
            "offset": row.utterance.start_ms / 1000,
            "duration": row.utterance.duration_ms / 1000,
            "text": row.label.text,
            "speaker": row.utterance.info.speaker,
            "lang": row.language,
            "split": row.utterance.split,
            "weight": row.utterance.weight,
            "id": row.utterance.id,
            **row.more,
        }
        print(dump_json({name: value for name, value in columns.items() if value is not None}), file=file)


def write_lhotse(labels: ExportedLabels, file: TextIO) -> None:
    """Cuts of lhotse, each with its recording and one supervision. DataError if lhotse cannot open the audio."""
    for row in labels.rows:
        if why := file_error(row, local=False, mono=False):
            raise unreadable("lhotse", row, why)
        print(dump_json(_cut(row)), file=file)


def _cut(row: ExportedLabel) -> dict[str, object]:
    utterance, recording = row.utterance, row.recording
    rate_hz, channels = recording.rate_hz or 16_000, list(range(recording.num_channels or 1))
    num_samples = -(-(recording.duration_ms or utterance.end_ms) * rate_hz // 1000)
    channel = utterance.channel or 0
    weight = {} if utterance.weight is None else {"weight": utterance.weight}
    supervision = {
        "id": utterance.id,
        "recording_id": recording.id,
        "start": 0.0,
        "duration": utterance.duration_ms / 1000,
        "channel": channel,
        "text": row.label.text,
        "language": row.language,
        "speaker": utterance.info.speaker,
        "alignment": {"word": _alignment(row.label.words)} if row.label.words else None,
        "custom": {"split": utterance.split, **weight, "teacher": row.label.teacher, **row.more},
    }
    return {
        "id": utterance.id,
        "start": utterance.start_ms / 1000,
        "duration": utterance.duration_ms / 1000,
        "channel": channel,
        "supervisions": [{name: value for name, value in supervision.items() if value is not None}],
        "recording": {
            "id": recording.id,
            "sources": [{"type": "file" if is_local(row.path) else "url", "channels": channels, "source": row.path}],
            "sampling_rate": rate_hz,
            "num_samples": num_samples,
            "duration": num_samples / rate_hz,
            "channel_ids": channels,
        },
        "type": "MonoCut",
    }


def _alignment(words: Iterable[Word]) -> list[list[object]]:
    """Words as items of lhotse: symbol, and start and duration in seconds from the start of the cut."""
    return [[word.text, word.start_ms / 1000, (word.end_ms - word.start_ms) / 1000] for word in words]


def write_datasets(labels: ExportedLabels, folder: Path) -> int:
    """A folder for `datasets`: one Parquet file for each split, with `audio` as its type `Audio`.

    Returns 0, as no label is left out.
    DataError if an utterance is not a file of its own: `datasets` has no way to name a stretch of one.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _datasets_schema(labels.more)
    writers: dict[str, pq.ParquetWriter] = {}
    try:
        while batch := list(islice(labels.rows, ROWS)):
            by_split: dict[str, list[dict[str, object]]] = {}
            for row in batch:
                if why := file_error(row, local=False, whole=True):
                    raise unreadable("hf", row, why)
                columns = {**manifest_row(row), "audio": {"bytes": None, "path": row.path}}
                by_split.setdefault(SPLITS_OF_DATASETS[row.utterance.split], []).append(columns)
            for name, columns_of in by_split.items():
                if name not in writers:
                    writers[name] = pq.ParquetWriter(folder / f"{name}.parquet", schema, compression="zstd")
                writers[name].write_table(pa.Table.from_pylist(columns_of, schema=schema))
    finally:
        for writer in writers.values():
            writer.close()
    return 0


def _datasets_schema(more: Sequence[pa.Field]) -> pa.Schema:
    """The columns, and beside them what `datasets` keeps in a Parquet file: the type of each of its features."""
    import pyarrow as pa

    texts = ("id", "text", *INFO_COLUMNS, "teacher")
    fields = [*(pa.field(name, pa.string()) for name in texts), pa.field("weight", pa.float64())]
    fields += (pa.field(one.name, one.type) for one in more)
    features: dict[str, dict[str, str]] = {"audio": {"_type": "Audio"}}
    for field in fields:
        dtype = "float64" if pa.types.is_float64(field.type) else str(field.type)
        features[field.name] = {"dtype": dtype, "_type": "Value"}
    audio = pa.field("audio", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    return pa.schema([audio, *fields], metadata={"huggingface": json.dumps({"info": {"features": features}})})


def _escaped(text: str, characters: re.Pattern[str]) -> str:
    """The text with each of the characters as `=XX`, the bytes of its UTF-8."""
    return characters.sub(lambda match: "".join(f"={byte:02X}" for byte in match[0].encode()), text)


def kaldi_ids(id_: str, speaker: str | None) -> tuple[str, str]:
    """The utterance id and speaker id, which Kaldi sorts in the same order: an utterance of an unknown speaker is its
    own speaker.

    An id that begins with its speaker and `-` stays as it is.
    """
    if not speaker:
        name = _escaped(id_, _NOT_IN_SPEAKER)
        return name, name
    name, suffix = _escaped(speaker, _NOT_IN_SPEAKER), _escaped(id_, _NOT_IN_ID)
    return (suffix if suffix.startswith(f"{name}-") else f"{name}-{suffix}"), name


def write_kaldi(labels: ExportedLabels, folder: Path) -> int:
    """A Kaldi data directory, sorted as in the C locale; returns how many labels without words it leaves out.

    The rows are sorted on disk. DataError if Kaldi cannot open the audio, or two utterances would have one id.
    """
    scratch = folder / "sorting.sqlite"
    with closing(sqlite3.connect(scratch)) as rows:
        rows.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536")
        rows.execute("CREATE TABLE wav (id TEXT PRIMARY KEY, path TEXT) WITHOUT ROWID")
        rows.execute(
            "CREATE TABLE utt (id TEXT PRIMARY KEY, speaker TEXT, segment TEXT, words TEXT, language TEXT)"
            " WITHOUT ROWID"
        )
        num_wordless = 0
        for row in labels.rows:
            if why := file_error(row) or _rxfile_error(row.path):
                raise unreadable("kaldi", row, why)
            if words := one_line(row.label.text):
                _insert(rows, row, words)
            else:
                num_wordless += 1
        _write_kaldi_files(rows, folder)
    scratch.unlink()
    return num_wordless


def _rxfile_error(path: str) -> str | None:
    match = _OPENED_OTHERWISE.search(path)
    return match and f"Kaldi does not read {match[0]!r} in a path literally"


def _insert(rows: sqlite3.Connection, row: ExportedLabel, words: str) -> None:
    utterance = row.utterance
    id_, speaker = kaldi_ids(utterance.id, utterance.info.speaker)
    segment = f"{utterance.recording_id} {utterance.start_ms / 1000:.3f} {utterance.end_ms / 1000:.3f}"
    rows.execute("INSERT OR IGNORE INTO wav VALUES (?, ?)", (utterance.recording_id, row.path))
    try:
        rows.execute(
            "INSERT INTO utt VALUES (?, ?, ?, ?, ?)",
            (id_, speaker, segment, words, one_line(row.language or "") or None),
        )
    except sqlite3.IntegrityError:
        raise DataError(
            f"two utterances would be `{id_}` in Kaldi",
            code="export-format",
            why="the speaker is put before ids that do not begin with it, which makes these two the same",
            fix="use `--format jsonl`, or other ids in the manifest",
        ) from None


def _write_kaldi_files(rows: sqlite3.Connection, folder: Path) -> None:
    """Write each file by a query; SQLite compares the bytes of UTF-8, as the C locale does."""

    def write(name: str, query: str) -> None:
        _write_lines(folder / name, (f"{key} {value}" for key, value in rows.execute(query)))

    write("wav.scp", "SELECT id, path FROM wav ORDER BY id")
    write("segments", "SELECT id, segment FROM utt ORDER BY id")
    write("text", "SELECT id, words FROM utt ORDER BY id")
    write("utt2spk", "SELECT id, speaker FROM utt ORDER BY id")
    by_speaker = groupby(rows.execute("SELECT speaker, id FROM utt ORDER BY speaker, id"), lambda pair: pair[0])
    with (folder / "spk2utt").open("w", encoding="utf-8", newline="\n") as file:
        for speaker, pairs in by_speaker:
            file.write(speaker)
            file.writelines(f" {id_}" for _, id_ in pairs)
            file.write("\n")
    if rows.execute("SELECT 1 FROM utt WHERE language IS NULL LIMIT 1").fetchone() is None:
        write("utt2lang", "SELECT id, language FROM utt ORDER BY id")


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def write_srt(labels: ExportedLabels, folder: Path) -> int:
    """One SubRip file for each recording, named after its file; returns 0, as no label is left out.

    A label without word times is divided in proportion to its characters, and no cue ends after the recording. The
    utterances of a recording follow one another in the table. Of files with the same name all but the first have the id
    of their recording in the name, too.
    """
    for recording_id, group in groupby(labels.rows, lambda row: row.utterance.recording_id):
        rows = list(group)
        uri, byte_range = split_range(rows[0].path)
        stem = file_name(PurePosixPath(uri).stem if byte_range is None else rows[0].utterance.id) or recording_id
        path = folder / f"{stem}.srt"
        if path.exists():
            path = folder / f"{stem}-{recording_id}.srt"
        channels = dict.fromkeys(row.utterance.channel for row in rows)
        of_channels = ([row for row in rows if row.utterance.channel == channel] for channel in channels)
        words_of_channels = (chain.from_iterable(map(_words, same)) for same in of_channels)
        duration_ms = rows[0].recording.duration_ms
        cues = sorted(
            (cue for words in words_of_channels for cue in subtitles.cues(words, duration_ms)),
            key=lambda cue: (cue.start_ms, cue.end_ms),
        )
        path.write_text(subtitles.srt(cues), encoding="utf-8")
    return 0


def _words(row: ExportedLabel) -> list[Word]:
    """The words of one label, in times of its recording."""
    start_ms, duration_ms = row.utterance.start_ms, row.utterance.duration_ms
    words = row.label.words or (Word(text=row.label.text, start_ms=0, end_ms=duration_ms),)
    return [dataclasses.replace(word.shifted(start_ms), text=one_line(word.text)) for word in words]


def write_stm(labels: ExportedLabels, file: TextIO) -> None:
    """STM, by which `voxstill score meeting` judges who said what: a line for each label, with words or without."""
    for row in transcript_segments(labels.rows):
        start_s, end_s = (row.start_ms or 0) / 1000, (row.end_ms or 0) / 1000
        line = f"{row.session} {row.channel} {row.speaker} {start_s:.3f} {end_s:.3f} {one_line(row.text)}"
        print(line.rstrip(), file=file)
