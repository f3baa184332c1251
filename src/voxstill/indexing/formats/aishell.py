"""AISHELL: the folder `transcript` has lines of a name and its text, for the audio below the folder `wav` beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from voxstill.core.monitor import log
from voxstill.core.records import UtteranceInfo
from voxstill.indexing.formats.entry import NO_METADATA, SourceEntry
from voxstill.indexing.formats.kaldi import KeyValueFile
from voxstill.indexing.formats.remote_file import open_manifest

TRANSCRIPT, AUDIO = "transcript", "wav"
_NAME = re.compile(r"[A-Za-z]\w*\d\w*")


def transcript_beside(path: str) -> str | None:
    """The transcript of a folder `wav` of this machine, where one lies beside it; None of any other folder."""
    folder = os.path.join(os.path.dirname(path.rstrip("/")), TRANSCRIPT)
    if os.path.basename(path.rstrip("/")) != AUDIO or not os.path.isdir(folder):
        return None
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".txt")]
    return paths[0] if len(paths) == 1 and _is_transcript(paths[0]) else None


def is_in_bucket(uri: str) -> bool:
    """Whether an address is that of AISHELL's transcript, by its name alone: nothing is fetched to find out."""
    return PurePosixPath(uri).match(f"{TRANSCRIPT}/aishell*.txt")


def _is_transcript(path: str) -> bool:
    """Whether the first line of a file is a name with a number in it, and its text."""
    with open_manifest(path) as file:
        words = file.readline(1 << 16).decode("utf-8", "replace").split()
    return len(words) > 1 and _NAME.fullmatch(words[0]) is not None


def with_texts(entries: Iterable[SourceEntry], transcript: str) -> Iterator[SourceEntry]:
    """The audio below `wav` with its text, its name as an id, and its folder as the speaker where the name has it."""
    num_without = 0
    with KeyValueFile(transcript) as texts:
        for entry in entries:
            path = PurePosixPath(entry.sample or os.path.splitext(entry.uri)[0])
            text = texts.get(path.name) if entry.metadata == NO_METADATA else None
            if text is None:
                num_without += entry.metadata == NO_METADATA
                yield entry
            else:
                speaker = path.parent.name if path.parent.name in path.name else None
                info = UtteranceInfo(speaker=speaker or None)
                yield replace(entry, id=path.name, text=text, info=info, where=transcript)
    if num_without:
        log.warning(
            "index: `%s` has no line for %d of its audio files, which therefore have no text", transcript, num_without
        )
