"""The recordings that a command line names: files, folders, addresses, standard input and the microphone."""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from types import ModuleType
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.core import pcm, scratch
from voxstill.core.errors import ConfigError, DataError, StorageError, first_line
from voxstill.core.monitor import log
from voxstill.core.records import RATE_HZ
from voxstill.storage.fetch import MAX_BYTES
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path

STANDARD_INPUT = "-"
AUDIO_ENDINGS = {
    *(
        ".3gp",
        ".aac",
        ".ac3",
        ".aif",
        ".aifc",
        ".aiff",
        ".amr",
        ".ape",
        ".au",
        ".avi",
        ".caf",
        ".dsf",
        ".dts",
        ".flac",
        ".flv",
    ),
    *(
        ".gsm",
        ".m4a",
        ".m4b",
        ".mka",
        ".mkv",
        ".mov",
        ".mp2",
        ".mp3",
        ".mp4",
        ".mpc",
        ".mpeg",
        ".mpg",
        ".mxf",
        ".oga",
        ".ogg",
    ),
    *(".ogv", ".oma", ".opus", ".snd", ".sph", ".spx", ".tta", ".voc", ".w64", ".wav", ".webm", ".wma", ".wmv", ".wv"),
}
"""Endings of the files that are taken from a folder; a file that is named itself may have any."""
_COPIED_BYTES = 1 << 20


class Recordings(NamedTuple):
    """Paths and addresses of recordings, in order, and how many files of folders were left out."""

    paths: Sequence[str]
    num_skipped: int


def expand(names: Sequence[str]) -> Recordings:
    """Every recording of the command line: folders and prefixes of buckets as the audio files in them, sorted.

    ConfigError if there is none, or standard input twice; DataError for a folder without audio; StorageError for a
    prefix that cannot be listed.
    """
    if not names:
        raise ConfigError(
            "there is no audio to read", code="no-input", why="no audio is given", fix="give files, folders or `-`"
        )
    if list(names).count(STANDARD_INPUT) > 1:
        raise ConfigError("`-` is given twice", code="no-input", why="standard input is read once", fix="give it once")
    paths: list[str] = []
    num_skipped = 0
    for name in names:
        files = _files(name)
        if files is None:
            paths.append(name)
            continue
        audio, others = [], Counter[str]()
        for file in files:
            ending = PurePosixPath(file).suffix.lower()
            if ending in AUDIO_ENDINGS:
                audio.append(file)
            else:
                others[ending or "no ending"] += 1
        if not audio:
            raise DataError(
                f"there is no audio in `{redact_uri(name)}`",
                code="no-audio",
                why=f"none of its {others.total()} files has an audio extension",
                fix="give the files themselves, or a folder with .wav, .flac, .mp3 or the like",
            )
        if others:
            kinds = ", ".join(f"{count} {ending}" for ending, count in others.most_common())
            log.info("%d files of `%s` are left out: %s", others.total(), redact_uri(name), kinds)
        paths += audio
        num_skipped += others.total()
    return Recordings(paths, num_skipped)


def _files(name: str) -> list[str] | None:
    """The files below a folder or a prefix of a bucket, sorted, without those that are hidden; None for anything else.

    An address is a prefix where it ends with a slash; a web server lists nothing.
    """
    if is_local(name):
        if not os.path.isdir(local_path(name)):
            return None
        files: list[str] = []
        for folder, folders, names in os.walk(local_path(name)):
            folders[:] = [one for one in folders if not one.startswith(".")]
            files += [os.path.join(folder, file) for file in names if not file.startswith(".")]
        return sorted(files)
    if not name.endswith("/") or name.startswith(("http://", "https://")):
        return None
    store = Store(name)
    keys = sorted(entry.key for entry in store.list())
    return [store.uri(key) for key in keys if not any(part.startswith(".") for part in PurePosixPath(key).parts)]


@contextmanager
def readable(path: str) -> Iterator[str]:
    """The path or address to read a recording from: for `-` that of a temporary copy of standard input."""
    if path == STANDARD_INPUT:
        with standard_input() as copy:
            yield copy
    else:
        yield path


def in_runs(paths: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Paths or addresses to read recordings from, in order, and their names without what signs addresses.

    A run of files is together; standard input, `-`, is alone, and its path is that of a temporary copy meanwhile.
    """
    for is_piped, run in itertools.groupby(paths, STANDARD_INPUT.__eq__):
        for names in ([name] for name in run) if is_piped else [list(run)]:
            with readable(names[0]) as path:
                yield [path, *names[1:]], list(map(redact_uri, names))


@contextmanager
def standard_input(source: BinaryIO | None = None) -> Iterator[str]:
    """The path of a temporary copy of standard input; ConfigError if that is a terminal."""
    if source is None:
        if sys.stdin is None:  # `<&-`
            raise ConfigError(
                "standard input is closed", code="no-input", why="it provides no audio", fix="pipe a file into it"
            )
        source = sys.stdin.buffer
    if source.isatty():
        raise ConfigError(
            "standard input is a terminal", code="no-input", why="it provides no audio", fix="pipe a file into it"
        )
    with scratch.folder() as folder, (folder / "audio").open("wb") as copy:
        while piece := source.read(_COPIED_BYTES):
            copy.write(piece)
            if copy.tell() > MAX_BYTES:
                raise StorageError(
                    "standard input is not read",
                    code="audio-too-long",
                    why=f"more than {MAX_BYTES / 1e9:.0f} GB come",
                    fix="split the audio",
                )
        copy.flush()
        yield str(folder / "audio")


def record(seconds: float) -> NDArray[np.int16]:
    """Samples of the microphone, 16 kHz mono; ConfigError if it cannot be recorded from."""
    with _microphone() as sounddevice:
        log.info("transcribe: recording for %g s", seconds)
        samples_T1 = sounddevice.rec(round(seconds * RATE_HZ), samplerate=RATE_HZ, channels=1, dtype="int16")
        sounddevice.wait()
    samples_T: NDArray[np.int16] = samples_T1[:, 0]
    return samples_T


def microphone(block_ms: int) -> Iterator[NDArray[np.int16]]:
    """Blocks of the microphone, 16 kHz mono, until it is interrupted; ConfigError if it cannot be recorded from."""
    with (
        _microphone() as sounddevice,
        sounddevice.InputStream(samplerate=RATE_HZ, channels=1, dtype="int16") as stream,
    ):
        log.info("listen: speak now; Ctrl-C ends it")
        while True:
            samples_T1, _ = stream.read(pcm.ms_to_samples(block_ms))
            yield samples_T1[:, 0].copy()


@contextmanager
def _microphone() -> Iterator[ModuleType]:
    """The library of the microphone; ConfigError if it is missing, or fails in the block."""
    try:
        import sounddevice
    except ImportError:
        raise ConfigError(
            "the microphone cannot be read",
            code="missing-package",
            why="sounddevice is not installed",
            fix="pip install 'voxstill[microphone]'",
        ) from None
    except OSError as error:  # the C library below it
        raise ConfigError(
            "the microphone cannot be read",
            code="no-input",
            why=first_line(error),
            fix="install PortAudio: apt install libportaudio2",
        ) from None
    try:
        yield sounddevice
    except sounddevice.PortAudioError as error:
        raise ConfigError(
            "the microphone cannot be read",
            code="no-input",
            why=first_line(error),
            fix="connect one, and allow this program to use it",
        ) from None
