"""export-labels: the labels of a WORK as files that other tools read."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TextIO, cast, get_args

from voxstill.core.atomic import atomic_file, atomic_folder
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log
from voxstill.core.result import Result
from voxstill.pipeline import export_formats
from voxstill.pipeline.exported import ExportedLabels, LabelReader
from voxstill.storage.uri import is_local, local_path

Form = Literal["jsonl", "csv", "nemo", "lhotse", "kaldi", "srt", "stm", "hf"]
FORMS: tuple[Form, ...] = get_args(Form)
_FILES: Mapping[Form, tuple[Callable[[ExportedLabels, TextIO], None], tuple[str, ...]]] = {
    "jsonl": (export_formats.write_jsonl, (".jsonl", ".jsonl.gz")),
    "csv": (export_formats.write_csv, (".csv",)),
    "nemo": (export_formats.write_nemo, (".json", ".jsonl")),
    "lhotse": (export_formats.write_lhotse, (".jsonl", ".jsonl.gz")),
    "stm": (export_formats.write_stm, (".stm",)),
}
"""What writes a file, and how its name ends, for its readers go by that."""
_FOLDERS: Mapping[Form, tuple[Callable[[ExportedLabels, Path], int], tuple[str, ...]]] = {
    "kaldi": (export_formats.write_kaldi, export_formats.KALDI_FILES),
    "srt": (export_formats.write_srt, ("*.srt",)),
    "hf": (export_formats.write_datasets, export_formats.DATASETS_FILES),
}
"""What fills a folder and returns how many labels it left out, and the files that it makes."""
_ADDRESS_AS_PATH = re.compile(r"(?!file:)[a-z][a-z0-9]+:/")
"""What `pathlib.Path` makes of an address: it has one slash left."""
_WITHOUT_COLUMNS: tuple[Form, ...] = ("kaldi", "srt", "stm")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult(Result):
    """How many labels were written, and where; failed ones, and those without words for Kaldi, are left out."""

    utterances: int
    path: str
    left_out: int


def export_labels(
    cfg: Config,
    output: str,
    form: Form = "jsonl",
    *,
    scores: bool = False,
    verdicts: bool = False,
    kept: bool = False,
    overwrite: bool = False,
) -> ExportResult:
    """Write the finished labels of the configuration, or the only ones that are there, as a file or folder.

    With `kept` those that the filter kept. ConfigError if the format has no place for what is asked, or where
    something exists that would be overwritten; DataError if it cannot name the audio.
    """
    path = _checked(output, form, overwrite)
    if form in _WITHOUT_COLUMNS and (scores or verdicts):
        raise ConfigError(
            f"`--format {form}` cannot hold scores and verdicts",
            code="option-conflict",
            why="it has texts and times only",
            fix="use another format for them, or `--kept` alone",
        )
    reader = LabelReader(cfg, scores=scores, verdicts=verdicts, kept=kept)
    labels = ExportedLabels(reader.rows(), reader.columns)
    num_wordless = 0
    if form in _FILES:
        with atomic_file(path) as draft, _text_file(draft, zipped=path.suffix == ".gz") as file:
            _FILES[form][0](labels, file)
    else:
        with atomic_folder(path) as draft:
            num_wordless = _FOLDERS[form][0](labels, draft)
    left_out = {
        "failed or removed labels": reader.num_failed,
        "utterances without a label": reader.num_unlabelled,
        "labels without words": num_wordless,
    }
    if any(left_out.values()):
        counts = (f"{count} {what}" for what, count in left_out.items() if count)
        log.warning("export-labels: left out: %s", ", ".join(counts))
    if form == "kaldi" and len(reader.splits) > 1:
        log.warning(
            "export-labels: a Kaldi directory does not record the splits of its utterances, which are %s: train only "
            "on those of train, which `--format jsonl` records",
            ", ".join(f"{num:,} of {split}" for split, num in sorted(reader.splits.items())),
        )
    return ExportResult(utterances=reader.num_given - num_wordless, path=str(path), left_out=sum(left_out.values()))


def _checked(output: str, form: Form, overwrite: bool) -> Path:
    """The path to write to; ConfigError if it cannot be that of the format, or holds what is not replaced."""
    if form not in FORMS:
        raise ConfigError(
            f"unknown format `{form}`",
            code="unknown-name",
            why="this format is not supported",
            fix=f"use one of {', '.join(FORMS)}",
        )
    if not is_local(output) or _ADDRESS_AS_PATH.match(output):
        fix = "write it to this machine, then copy it there"
        raise ConfigError(
            f"`{output}` is not a path", code="output-path", why="labels are exported to files of this machine", fix=fix
        )
    path = local_path(output).expanduser()
    endings = _FILES[form][1] if form in _FILES else ()
    if endings and not path.name.endswith(endings):
        fix = f"give it the extension {' or '.join(endings)}"
        raise ConfigError(
            f"`{path}` is not a file name for `--format {form}`",
            code="output-path",
            why="its readers rely on the extension",
            fix=fix,
        )
    if path.is_dir() if endings else path.is_file():
        kind = "a folder" if endings else "a file"
        raise ConfigError(
            f"`{path}` is {kind}", code="output-path", why=f"`--format {form}` writes none", fix="give another path"
        )
    foreign = [] if endings or not path.is_dir() else _foreign(path, _FOLDERS[form][1])
    if foreign:
        why = f"it contains `{foreign[0]}`, which `--format {form}` does not write"
        raise ConfigError(f"`{path}` is not replaced", code="output-exists", why=why, fix="give a new folder")
    if not overwrite and (path.is_file() or (path.is_dir() and any(path.iterdir()))):
        raise ConfigError(
            f"`{path}` exists",
            code="output-exists",
            why="it would be overwritten",
            fix="give another path, or add --yes",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _foreign(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    """Names in a folder that an export of this format has not written."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() or not any(map(entry.match, patterns)))


@contextmanager
def _text_file(path: Path, *, zipped: bool) -> Iterator[TextIO]:
    """A file for text as UTF-8 whose line ends are those written; equal texts give equal bytes."""
    with contextlib.ExitStack() as files:
        binary: IO[bytes] = files.enter_context(path.open("wb"))
        if zipped:
            binary = cast(IO[bytes], files.enter_context(gzip.GzipFile("", "wb", fileobj=binary, mtime=0)))
        yield files.enter_context(io.TextIOWrapper(binary, "utf-8", newline=""))
