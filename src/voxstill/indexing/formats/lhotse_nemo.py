"""Manifests of lhotse (cuts, Shar) and NeMo (tarred) that say more than where a file lies."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from voxstill.core.errors import DataError
from voxstill.indexing.failure import FailureKind
from voxstill.indexing.formats.entry import (
    SourceEntry,
    bad_row,
    folder_of,
    local_entry,
    metadata_of,
    resolve,
    time_ms,
    timed,
)
from voxstill.indexing.formats.remote_file import open_manifest
from voxstill.indexing.formats.webdataset import AUDIO, TAR_ERRORS, member_entry, open_tar, tar_entry
from voxstill.indexing.formats.word_times import of_alignments, read_words
from voxstill.storage.uri import is_local

SHAR_CUTS = re.compile(r"cuts(\.\d+)\.jsonl(\.gz)?$")
"""The name of one shard's cuts in lhotse's Shar; its audio lies beside it in `recording` and the same number."""
_TOLERANCE_S = 0.05
"""A supervision that sticks out of its cut by more than this has words that are not spoken there."""


def is_cut(row: Mapping[str, object]) -> bool:
    """Whether a row is a cut of lhotse."""
    return isinstance(row.get("recording"), Mapping) and "supervisions" in row


def is_half_of_cut(row: Mapping[str, object]) -> bool:
    """Whether a row is a recording or a supervision of lhotse, which a cut joins."""
    return {"id", "sources", "sampling_rate"} <= row.keys() or {"id", "recording_id", "duration"} <= row.keys()


def cut_entry(row: Mapping[str, object], manifest: str, where: str) -> SourceEntry:
    """What a cut of lhotse means."""
    recording, supervisions = row["recording"], row["supervisions"]
    assert isinstance(recording, Mapping), "`is_cut` lets nothing else pass"
    sources = [source for source in recording.get("sources") or () if isinstance(source, Mapping)]
    start_ms = time_ms(row, "start", where, 1000) or 0
    duration_ms = time_ms(row, "duration", where, 1000)
    if row.get("type", "MonoCut") != "MonoCut" or len(sources) != 1 or duration_ms is None:
        raise bad_row(where, "it is not a MonoCut with one source: only those can be read")
    supervisions = (
        [part for part in supervisions if isinstance(part, Mapping)] if isinstance(supervisions, list) else []
    )
    columns = {
        "id": row.get("id"),
        "channel": row.get("channel") if len(sources[0].get("channels") or [0]) > 1 else None,
        **_supervised(supervisions, start_ms, duration_ms),
    }
    names = (f"supervisions.{name}" for part in supervisions for name in part)
    metadata = replace(
        metadata_of(columns, where),
        words=read_words(columns["words"], where),
        columns=(*row, *dict.fromkeys(names)),
    )
    is_whole = start_ms == 0 and duration_ms >= (time_ms(recording, "duration", where, 1000) or math.inf)
    if not is_whole:
        metadata = timed(metadata, start_ms, start_ms + duration_ms, where)
    kind, source = sources[0].get("type"), sources[0].get("source")
    if kind == "shar":
        return _in_shar_tar(manifest, metadata)
    if kind not in ("file", "url") or not isinstance(source, str):
        reason = f"its audio is a `{kind}`, which is not read; write it to files with lhotse"
        return metadata.failed(f"{manifest}#{metadata.id}", reason)
    file = resolve(source, manifest)
    if is_local(source) and is_local(manifest) and not os.path.exists(file.uri):  # lhotse starts where it runs
        file = local_entry(os.path.abspath(source))
    return metadata.located(file)


def _supervised(rows: Sequence[Mapping[str, Any]], start_ms: int, duration_ms: int) -> dict[str, object]:
    """Text, words, speaker, language, split and weight of the supervisions of a cut, which starts so late in its file.

    Their texts are one text, in their order, where each has one and lies within the cut; its words have times where
    each has an alignment of words, whose times start with the cut. A speaker, a language or, in
    `custom`, a split or a weight is known where all have the same.
    """
    ordered = sorted(rows, key=lambda row: row.get("start") or 0)
    texts = [row.get("text") for row in ordered]
    are_inside = all(
        (row.get("start") or 0) >= -_TOLERANCE_S
        and (row.get("start") or 0) + (row.get("duration") or 0) <= duration_ms / 1000 + _TOLERANCE_S
        for row in rows
    )
    has_text = bool(texts) and are_inside and all(isinstance(text, str) for text in texts)
    speakers, languages = ({row.get(name) for row in rows} for name in ("speaker", "language"))
    customs = [custom for row in rows if isinstance(custom := row.get("custom"), Mapping)]
    splits, weights = ({str(custom.get(name)) for custom in customs} for name in ("split", "weight"))
    return {
        "text": " ".join(map(str, texts)) if has_text else None,
        "speaker": speakers.pop() if len(speakers) == 1 else None,
        "language": languages.pop() if len(languages) == 1 else None,
        "subset": splits.pop() if len(splits) == 1 else None,
        "weight": customs[0].get("weight") if len(weights) == 1 else None,
        "words": of_alignments(ordered, start_ms / 1000) if has_text else None,
    }


def nemo_tar_entry(name: str, shard: object, manifest: str, metadata: SourceEntry) -> SourceEntry:
    """The member that a line of NeMo's tarred manifest means: in `audio_<shard_id>.tar` beside it, or one folder up."""
    folder = folder_of(manifest)
    uris = [f"{path}/audio_{shard}.tar" for path in (folder, folder.rpartition("/")[0])]
    for uri in uris:
        members = _members(uri)
        if members is not None:
            break
    else:
        detail = f"no `audio_{shard}.tar` beside the manifest can be opened"
        return metadata.failed(f"{uris[0]}#{name}", FailureKind.UNREADABLE, detail)
    stem, dot, ending = name.rpartition(".")  # several stretches of one member have names of their own
    member = members.get(name) or members.get(f"{re.sub(r'-sub[0-9]+$', '', stem)}{dot}{ending}")
    if member is None:
        detail = f"no member of `audio_{shard}.tar` has this name"
        return metadata.failed(f"{uri}#{name}", FailureKind.NOT_THERE, detail)
    return metadata.located(member)


def _in_shar_tar(manifest: str, metadata: SourceEntry) -> SourceEntry:
    """The member that a cut of lhotse's Shar means: it has the cut's id and some ending of audio."""
    name = manifest.rpartition("/")[2]
    tar_name = SHAR_CUTS.sub(r"recording\1.tar", name)
    uri = f"{folder_of(manifest)}/{tar_name}"
    members = _members(uri)
    if members is None or tar_name == name:
        detail = f"the tar `{tar_name}` of its audio is missing beside `{name}`"
        return metadata.failed(f"{uri}#{metadata.id}", FailureKind.UNREADABLE, detail)
    for ending in sorted(AUDIO):
        if (member := members.get(f"{metadata.id}.{ending}")) is not None:
            return metadata.located(member)
    detail = f"no member of `{tar_name}` has this name"
    return metadata.failed(f"{uri}#{metadata.id}", FailureKind.NOT_THERE, detail)


@functools.lru_cache(maxsize=4)  # lines of one shard follow one another
def _members(uri: str) -> dict[str, SourceEntry] | None:
    """Each member of a tar by its name; None if no such tar can be opened."""
    try:
        with open_manifest(uri) as file, open_tar(file) as archive:
            tar = tar_entry(uri, file)
            return {member.name: member_entry(tar, member) for member in archive if member.isfile()}
    except (DataError, *TAR_ERRORS):
        return None
