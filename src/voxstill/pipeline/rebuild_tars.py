"""Write broken tars of shards again from their sidecars: nothing is removed, and no more of a source read than broke.

The checksums of a sidecar say whether audio is what it was. So this needs no configuration, no plan of the shards and
no labels, and may be done to every generation.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from voxstill.audio import codec, read_utterances
from voxstill.core.config import Config
from voxstill.core.errors import StorageError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import Utterance
from voxstill.pipeline.check_table import Finding
from voxstill.pipeline.recipes import removed_in
from voxstill.sharding import rebuild
from voxstill.storage import lease, removals, tables, workdir
from voxstill.storage.arrays import arrow_array
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store


@dataclass
class Rebuilt:
    """The keys of tars that were written again, and why other tables have to wait: their source cannot be read now."""

    written: list[str] = field(default_factory=list)
    waiting: dict[str, VoxstillError] = field(default_factory=dict)


def rebuild_tars(cfg: Config, findings: Sequence[Finding]) -> Rebuilt:
    """Write every broken tar again whose sidecar is whole and whose audio can be had.

    A table waits where audio of one of its tars cannot be read or has changed: both may pass.
    """
    work, broken, rebuilt = Store(cfg.work), {finding.path for finding in findings}, Rebuilt()
    tars = [finding for finding in findings if finding.kind == "shards" and finding.path.endswith(".tar")]
    stays = {recipe: not _holds_removed(work, recipe) for recipe in {finding.recipe for finding in tars}}
    for finding in tars:
        sidecar = finding.path.removesuffix(".tar") + ".parquet"
        if sidecar in broken or not stays[finding.recipe]:
            continue
        with lease.hold(work, finding.table, "verify --repair") as held:
            lease.check_free(work, *lease.below(work, finding.table))
            samples = tables.from_parquet(work.read(sidecar), Sample, work.uri(sidecar))
            data, unread = b"", dict[str, VoxstillError]()
            with contextlib.suppress(StorageError):  # another can take the place of one that the disk cannot read
                data = work.read_or_none(finding.path) or b""
            tar = rebuild.rebuilt(data, samples, functools.partial(_read, cfg, work, unread))
            if tar is not None:
                held.check()
                work.replace(finding.path, tar)
                log.warning("verify: `%s` is written again from its sidecar", finding.path)
                rebuilt.written.append(finding.path)
            elif unread:
                rebuilt.waiting[finding.table] = next(iter(unread.values()))
    return rebuilt


def _holds_removed(work: Store, recipe: str) -> bool:
    """Whether shards hold removed utterances, or may: their audio is not to be written again."""
    with contextlib.suppress(VoxstillError):
        shards = workdir.success(work, ShardFigures, recipe)
        return bool(removals.record(work)) and (shards is None or bool(removed_in(work, shards)))
    return True


def _read(cfg: Config, work: Store, unread: dict[str, VoxstillError], samples: Sequence[Sample]) -> dict[str, bytes]:
    """The audio of samples as it was written, read from the source; none of those that are not so any more.

    Why one cannot be read now, and may be later, is put into `unread`.
    """
    wanted, audio = {sample.id: sample for sample in samples}, dict[str, bytes]()
    utterances = list(_utterances(work, wanted))
    reading = read_utterances.reading(cfg)
    with reading.decoder() as decoder:
        rows = read_utterances.samples(utterances, reading.cache, decoder.decode, reading.contents)
        for utterance, samples_T in rows:
            if isinstance(samples_T, VoxstillError):
                log.warning("verify: the source of `%s`: %s (%s)", utterance.id, samples_T.what, samples_T.why)
                if isinstance(samples_T, (StorageError, read_utterances.ChangedError)):
                    unread[utterance.id] = samples_T
                continue
            sample = wanted[utterance.id]
            assert sample.format != "in_place", "audio that was left in place has no tar here"
            encoded = codec.encode(samples_T, "wav" if sample.format == "wav" else "flac")
            if rebuild.is_audio_of(sample, encoded):
                audio[utterance.id] = encoded
    for id_ in unread.keys() & audio.keys():  # another table has it under another address
        del unread[id_]
    return audio


def _utterances(work: Store, ids: Collection[str]) -> Iterator[Utterance]:
    """The utterances of these ids in every table that can be read; of two of one id the checksum decides."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = arrow_array(sorted(ids), pa.string())
    for key in tables.parts(work, "utterances"):
        with contextlib.suppress(VoxstillError):
            part = tables.to_arrow(work.read(key), Utterance, work.uri(key))
            rows = part.filter(pc.is_in(part["id"], value_set=wanted))
            yield from (tables.from_columns(row, Utterance) for row in rows.to_pylist())
