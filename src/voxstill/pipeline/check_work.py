"""Every finished table of a WORK, compared with what was written and with the tables that it was made of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from voxstill.core.errors import DataError, StorageError, VoxstillError
from voxstill.core.records import Alignment, Label, Utterance, Verdict
from voxstill.filtering.measures import Score
from voxstill.indexing.part_columns import removed_ids
from voxstill.indexing.segment import IndexRow
from voxstill.pipeline.check_table import IS_MISSING, Findings, FinishedTable, ReadPart
from voxstill.sharding import generation
from voxstill.storage import manifest, same_audio, shard_check, tables, workdir
from voxstill.storage.figures import (
    AlignmentFigures,
    IndexFigures,
    Kind,
    LabelFigures,
    MixtureFigures,
    ScoreFigures,
    ShardFigures,
    VerdictFigures,
)
from voxstill.storage.shard_format import Sample, sidecar_name
from voxstill.storage.store import Store


def check_work(work: Store) -> Findings:
    """Read every finished table, and every shard to its last byte."""
    check = _Check(Findings(work))
    checks: dict[Kind, Callable[[str], None]] = {
        "utterances": check.utterances,
        "labels": check.labels,
        "alignments": check.alignments,
        "scores": check.scores,
        "verdicts": check.verdicts,
        "shards": check.shards,
        "mixtures": check.mixtures,
    }
    for kind, check_table in checks.items():
        for recipe in _finished_once(work, kind):
            check_table(recipe)
    return check.findings


def _finished_once(work: Store, kind: Kind) -> list[str]:
    """Recipes of the tables that are finished, or were before a file of them was lost."""
    names = (entry.key.split("/") for entry in work.list(kind))
    return sorted({name[1] for name in names if name[-1] in (tables.SUCCESS, manifest.NAME)})


@dataclass
class _Check:
    """One check for each kind of table."""

    findings: Findings
    _ids: dict[str, tables.IdCount] = field(default_factory=dict)
    """Of the tables of utterances that are whole."""
    _listings: dict[str, str] = field(default_factory=dict)
    """The table of utterances of each listing."""

    @property
    def work(self) -> Store:
        return self.findings.work

    def utterances(self, recipe: str) -> None:
        table = FinishedTable(self.findings, IndexFigures, recipe)
        ids, uris, num_removed = tables.IdCount(), tables.IdCount(), 0
        recordings = workdir.prefix("recordings", recipe)
        recording_ids: dict[str, tables.IdCount] = {}
        for part in table.parts(Utterance):
            ids.add(part.ids("id"))
            recording_ids[f"{recordings}/{part.key.rpartition('/')[2]}"] = _distinct(part, "recording_id")
        for part in table.read(list(recording_ids), set(tables.parts(self.work, recordings)), IndexRow):
            uris.add(part.ids("uri"))
            num_removed += 0 if part.rows is None else len(removed_ids(part.rows))
            if part.rows is not None and (num := recording_ids[part.key].num_missing(_distinct(part, "id"))):
                table.add(part.key, f"it lacks {num:,} recordings that have utterances")
        table.add_doubled(ids)
        if (figures := table.sound_figures) is not None:
            table.compare("utterances", figures.utterances, len(ids))
            table.compare("recordings", figures.recordings, uris.num_distinct())
            table.compare("removed utterances", figures.removed or 0, num_removed)
            self._ids[table.prefix] = ids
            self._listings[tables.parts_hash(self.work, table.prefix)] = table.prefix

    def labels(self, recipe: str) -> None:
        table = FinishedTable(self.findings, LabelFigures, recipe)
        ids, digest = tables.IdCount(), hashlib.sha256()
        for part in table.parts(Label):
            ids.add(part.ids("utterance_id"))
            digest.update(hashlib.sha256(part.data).digest())
        table.add_doubled(ids)
        utterances = self._compared_with(table)
        figures = table.sound_figures
        if figures is None or len(ids) > figures.labels:  # others were started since: they have no figures yet
            return
        table.compare("labels", figures.labels, len(ids))
        if len(ids) == figures.labels and figures.sha256 not in ("", digest.hexdigest()):
            table.add(table.prefix, f"the checksum of its labels is not that of {tables.SUCCESS}")
        utterance_ids = self._ids.get(self._listings.get(figures.source or "", ""))
        if utterance_ids is not None and (num := utterance_ids.num_missing(ids)):
            table.add(table.prefix, f"{num:,} of {len(utterance_ids):,} utterances have no label")
        if utterances in self._ids:
            try:
                same_audio.compare(self.work, utterances, table.prefix)
            except DataError as error:
                table.add(table.prefix, error.what)

    def _compared_with(self, table: FinishedTable[LabelFigures]) -> str:
        """The utterances that labels were compared with; empty if there are none, or the note of it is broken."""
        try:
            return same_audio.compared_with(self.work, table.prefix)
        except DataError as error:
            table.add(f"{table.prefix}/{same_audio.NAME}", error.why or error.what)
            return ""

    def alignments(self, recipe: str) -> None:
        table = FinishedTable(self.findings, AlignmentFigures, recipe)
        ids = tables.IdCount()
        for part in table.parts(Alignment):
            ids.add(part.ids("utterance_id", "text"))
        table.add_doubled(ids)
        if (figures := table.sound_figures) is not None:
            table.compare("alignments", figures.alignments, len(ids))

    def scores(self, recipe: str) -> None:
        table = FinishedTable(self.findings, ScoreFigures, recipe)
        ids = tables.IdCount()
        for part in table.parts(Score):
            ids.add(part.ids("utterance_id"))
        table.add_doubled(ids)  # those of a corpus that has grown since are not of all utterances

    def verdicts(self, recipe: str) -> None:
        table = FinishedTable(self.findings, VerdictFigures, recipe)
        ids, num_kept = tables.IdCount(), 0
        for part in table.parts(Verdict):
            ids.add(part.ids("utterance_id"))
            num_kept += 0 if part.rows is None else sum(part.rows["kept"].to_pylist())
        table.add_doubled(ids)
        if (figures := table.sound_figures) is not None:
            table.compare("verdicts", figures.judged, len(ids))
            table.compare("kept utterances", figures.kept_utterances, num_kept)

    def shards(self, recipe: str) -> None:
        table = FinishedTable(self.findings, ShardFigures, recipe)
        names = [] if table.figures is None else map(sidecar_name, range(table.figures.shards))
        tars = {entry.key for entry in self.work.list(table.prefix) if entry.key.endswith(".tar")}
        written = table.figures or ShardFigures(recipe=recipe)
        all_have_tars = written.generation is None and (bool(tars) or written.lineage is not None)
        try:  # a later generation names tars of those before it, and audio in place has none
            all_have_tars &= generation.base_of(self.work, table.prefix) is None
        except VoxstillError as error:
            all_have_tars = False
            table.add(f"{table.prefix}/{generation.BASE}", error.why or error.what)
        ids = tables.IdCount()
        for part in table.parts(Sample, names):
            ids.add(part.ids("id"))
            self._tar(table, part, tars, all_have_tars=all_have_tars)
        table.add_doubled(ids)
        if (figures := table.sound_figures) is not None:
            table.compare("utterances", figures.utterances, len(ids))

    def mixtures(self, recipe: str) -> None:
        """The sidecars alone: the tars are those of other shards, which are checked where they lie."""
        table = FinishedTable(self.findings, MixtureFigures, recipe)
        ids = tables.IdCount()
        for part in table.parts(Sample):
            ids.add(part.ids("id"))
        table.add_doubled(ids)
        if (figures := table.sound_figures) is not None:
            table.compare("utterances", figures.utterances, len(ids))

    def _tar(
        self, table: FinishedTable[ShardFigures], sidecar: ReadPart, tars: set[str], *, all_have_tars: bool
    ) -> None:
        """Compare the tar of a shard with its sidecar, or what its samples name in tars of the source."""
        tar = sidecar.key.removesuffix(".parquet") + ".tar"
        if sidecar.rows is None:
            if tar in tars:
                table.add(tar, "it cannot be checked without its sidecar")
            elif all_have_tars:
                table.add(tar, IS_MISSING)
            return
        samples = [tables.from_columns(row, Sample) for row in sidecar.rows.to_pylist()]
        if samples and samples[0].tar is not None:
            if (fault := shard_check.place_fault(self.work, samples)) is not None:
                table.add(sidecar.key, fault)
            return
        self.findings.checked += 1
        fault = self._tar_fault(tar, samples) if tar in tars else IS_MISSING
        if fault is not None:
            table.add(tar, fault)

    def _tar_fault(self, tar: str, samples: list[Sample]) -> str | None:
        try:
            return shard_check.tar_fault(self.work.read(tar), samples)
        except StorageError as error:
            return f"{error.what}: {error.why}"


def _distinct(part: ReadPart, column: str) -> tables.IdCount:
    """The different ids in a column of a part: of a recording there may be thousands of utterances."""
    ids = tables.IdCount()
    ids.add(b"" if part.rows is None else tables.digests(part.rows[column].unique().to_pylist()))
    return ids
