"""index: segment every file of the source into utterances; a file that cannot be read has an error instead."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

from voxstill import engine
from voxstill.audio import level, read_utterances
from voxstill.core.config import Config, Source, sources_of
from voxstill.core.errors import DataError, StorageError, VoxstillError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.monitor import log
from voxstill.core.records import Normalization, Utterance
from voxstill.diarization import registry as diarization
from voxstill.indexing import duplicates, segment
from voxstill.indexing.audio_estimate import estimated_ms
from voxstill.indexing.recipe import utterances_recipe
from voxstill.indexing.scan import SourceFile, SourceFiles, by_file, scan, speaker_of
from voxstill.indexing.split_leaks import SplitLeaks
from voxstill.indexing.state import IndexState
from voxstill.pipeline.marks import marks_children
from voxstill.storage import lease, parts, removals, tables, workdir
from voxstill.storage.figures import UNREADABLE, IndexFigures
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store

_REASONS_SHOWN = 3
"""Of the reasons why no recording can be used, the most common."""
_FEW = 0.01
"""Share of recordings with clipping or a DC offset that is counted, but no reason for a warning."""


@marks_children("index")
def index(cfg: Config, *, part: str | None = None) -> IndexFigures:
    """Every file of the source is a recording with its utterances, or a recording with a reason.

    What is there already stays as it is; what storage did not give the last time is tried again. With `part`, K/N or
    `auto`, only the files of that part are indexed; the figures count all. DataError if a file, or what the source
    says of it, has changed since it was indexed: labels, splits and texts would be of then; and where no recording can
    be used. ConfigError if the part is none.
    """
    own = parts.requested(part)
    diarization.create(cfg.diarize)  # a missing engine is reported before anything is read
    work, recipe = Store(cfg.work), utterances_recipe(cfg)
    with parts.hold(work, workdir.prefix("utterances", recipe), "index", own, cfg.engine) as held:
        figures = _index(cfg, work, recipe, held, own)
    figures = dataclasses.replace(figures, max_failed_share=cfg.engine.max_failed_share)
    if figures.exit_code:
        error = unusable(figures)
        log.error("index: %s (%s): %s", error.what, error.why, error.fix)
    if figures.damaged_segments:
        why = ", ".join(f"{reason}: {num}" for reason, num in figures.segment_reasons.items())
        log.warning("index: %d segments of other recordings cannot be used: %s", figures.damaged_segments, why)
    if figures.untimed:
        why = ", ".join(f"{reason}: {num}" for reason, num in figures.untimed.items())
        log.warning("index: word times of %d utterances are not used: %s", sum(figures.untimed.values()), why)
    if figures.speaker_doubts:
        why = ", ".join(f"{reason}: {num}" for reason, num in figures.speaker_doubts.items())
        log.warning(
            "index: diarization is not sure of recordings or channels (%s): `speaker_doubts` in `recordings` has the "
            "reason of each; where it has failed, utterances have no speaker and are not cut at turns",
            why,
        )
    if figures.duplicates:
        log.warning(
            "index: %d recordings have audio that is in the table under another address, and are left out: `error` "
            "in `recordings` has that address. Words, speakers and splits remain those of the first; if the audio was "
            "moved, link its old place to the new one (`ln -s NEW OLD`), because all steps read it there",
            figures.duplicates,
        )
    _warn_of_levels(figures, cfg.audio.normalize)
    return figures


def _warn_of_levels(figures: IndexFigures, normalize: Normalization) -> None:
    few = _FEW * figures.recordings
    if figures.clipped > few:
        log.warning(
            "index: %d recordings have more than %g %% of their samples at or beyond full scale: %s",
            figures.clipped,
            100 * level.MAX_CLIPPED,
            "`audio.normalize: peak` keeps what float files have beyond it; others were recorded too loud"
            if normalize == "none"
            else "float files keep what is beyond it; others were recorded too loud, which only the original "
            "recording can repair",
        )
    if figures.dc_offset > few:
        log.warning(
            "index: %d recordings have a DC offset of more than %g %% of full scale: a high-pass filter removes it "
            "(`ffmpeg -i IN -af highpass=f=20 OUT`)",
            figures.dc_offset,
            100 * level.MAX_DC_OFFSET,
        )


def unusable(figures: IndexFigures) -> VoxstillError:
    """What is to be said of an index of which too much is missing: a StorageError if some could not be read."""
    what = f"{figures.damaged} of {figures.recordings} recordings cannot be used"
    why = ", ".join(f"{reason}: {num}" for reason, num in figures.reasons.items())
    if figures.exit_code == StorageError.exit_code:
        return StorageError(
            what, code="recordings-unusable", why=why, fix="the same command tries again what storage did not return"
        )
    return DataError(
        what,
        code="recordings-unusable",
        why=why,
        fix="fix the source, or raise `engine.max_failed_share` to continue with the rest",
    )


def _warn_of_kept(num: int) -> None:
    if num:
        log.warning(
            "index: %d recordings that the source holds out were indexed for training before and remain there: to hold "
            "them out, index into another work folder (copy `labels` there, and nothing is labelled twice)",
            num,
        )


def _warn_of_added_times(num: int) -> None:
    if num:
        log.warning(
            "index: %d recordings were indexed before their source had word times, or by a version that did not read "
            "them, and have none: to use them, index into another work folder",
            num,
        )


def _index(cfg: Config, work: Store, recipe: str, held: lease.Lease, part: parts.Part | None) -> IndexFigures:
    recordings, prefix = workdir.prefix("recordings", recipe), workdir.prefix("utterances", recipe)
    files = by_file(scan(cfg.source, work, read_utterances.reading(cfg).cache))
    _warn_of_absent_speakers(files, sources_of(cfg.source))
    state, removed = IndexState(work, recordings, prefix), removals.record(work)
    missing = state.missing(files)
    _warn_of_kept(state.num_kept_in_training())
    _warn_of_added_times(state.num_times_added)
    if part is not None:
        missing = bytearray(todo and part.takes(file.id) for file, todo in zip(files, missing, strict=True))
    log.info("index: %d files found, %d of them to do", len(files), sum(missing))

    def is_still_unreadable(recording: segment.IndexRow) -> bool:
        failure = recording.failure
        return failure is not None and failure.is_transient and recording.id in state

    is_held_out = [source.dev_share + source.test_share > 0 for source in sources_of(cfg.source)]
    outage, named, leaks = engine.Outage("files"), set[str](), SplitLeaks()

    def commit(chunk: engine.Chunk, rows: Sequence[segment.IndexedFile]) -> None:
        held.check()
        leaks.has_unknown_speakers |= any(
            is_held_out[file.source] and _is_split_by_recording(file) for file in chunk.items
        )
        rows = _without_removed(removed, rows)
        utterances = [utterance for row in rows for utterance in row.utterances]
        for row in rows:
            leaks.see(row.utterances)
        errors = (row.recording.error for row in rows if row.recording.error is not None)
        _name_first(rows, named)
        meter.count_done(sum(utterance.duration_ms for utterance in utterances), errors)
        new = [row.recording for row in rows if not is_still_unreadable(row.recording)]
        if new:
            key, row_bytes = f"{recordings}/{chunk.id}.parquet", tables.to_parquet(new, segment.IndexRow)
            committed = f"{prefix}/{chunk.id}.parquet"
            if not work.create(key, row_bytes) and not work.exists(committed):
                work.replace(key, row_bytes)  # left by a run that was ended before its commit
            work.create(committed, tables.to_parquet(utterances, Utterance))
        outage.record(map(_postponed, rows))

    reading = read_utterances.reading(cfg)
    indexer = segment.Indexer(cfg.segment, cfg.source, cfg.seed, reading, cfg.audio.normalize, cfg.diarize)
    stages = (engine.Stage(name="index", work=indexer, workers=cfg.engine.workers, resources=cfg.engine.resources),)

    def set_aside(file: SourceFile, reason: str) -> segment.IndexedFile:
        return segment.set_aside(file, reason, cfg.source, cfg.seed)

    def item_id(file: SourceFile) -> str:
        # a file that is tried again is another item than the first time: its part must not be taken for that one
        return file.id + file.metadata_hash * (file.id in state)

    if any(missing):
        todo = map(state.with_free_ids, itertools.compress(files, missing))
        chunks = engine.chunks_of(todo, cfg.engine.chunk, item_id, estimated_ms, cfg.engine.chunk_hours * 3_600_000)
        with StepMeter("index", sum(missing), "files") as meter:
            engine.run(chunks, stages, commit, set_aside, cfg.engine, meter)
    for sentence in leaks.warnings():
        log.warning("index: %s", sentence)
    return _finish(cfg, work, state, files, recipe, held, part)


def _finish(
    cfg: Config,
    work: Store,
    state: IndexState,
    files: SourceFiles,
    recipe: str,
    held: lease.Lease,
    part: parts.Part | None,
) -> IndexFigures:
    """The figures of all that is there; written where that is everything."""
    recordings, prefix = workdir.prefix("recordings", recipe), workdir.prefix("utterances", recipe)
    state.read()
    if part is not None and not parts.is_finished("index", part, state.left(files)):
        return dataclasses.replace(state.figures(recipe), finished=False)
    while True:
        if part is not None:
            state.refuse_versions()
        state.refuse_doubled()
        shared_N = state.shared_contents()
        is_changed = duplicates.drop(work, recordings, prefix, shared_N, files, sources_of(cfg.source), held.check)
        if is_changed or (part is not None and len(shared_N)):  # another part that ends now may have done it
            state = IndexState(work, recordings, prefix)
        figures = state.figures(recipe)
        if figures.damaged == figures.recordings and UNREADABLE not in figures.reasons:
            raise _nothing_usable(figures)
        workdir.finish(work, figures)
        if part is None or not state.read():  # another part may have read meanwhile what could not be read before
            return figures


def _name_first(rows: Sequence[segment.IndexedFile], named: set[str]) -> None:
    """Log the first unusable recording of each kind of failure; the figures only count them."""
    for recording in (row.recording for row in rows):
        if recording.failure is not None and recording.failure.kind not in named:
            named.add(recording.failure.kind)
            log.warning("index: `%s` cannot be used: %s", redact_uri(recording.uri), recording.failure.text)


def _warn_of_absent_speakers(files: SourceFiles, sources: Sequence[Source]) -> None:
    """Warn of held-out speakers without any recording: with a typo in its name, a speaker would be in training."""
    absent = [{*source.test_speakers, *source.dev_speakers} for source in sources]
    for file in files if any(absent) else ():
        absent[file.source].difference_update(map(speaker_of, file.entries))
    if names := sorted(set[str]().union(*absent)):
        log.warning(
            "index: `source.test_speakers` or `source.dev_speakers` contain %s, but no recording is of them: check the "
            "names, because all other speakers are in training",
            ", ".join(f"`{name}`" for name in names),
        )


def _postponed(row: segment.IndexedFile) -> segment.IndexedFile | engine.Postponed:
    failure = row.recording.failure
    if failure is None or not failure.is_transient:
        return row
    error = StorageError(
        f"cannot read `{row.recording.uri}`",
        code="storage-unreachable",
        why=failure.detail or "",
        fix="check the storage",
    )
    return engine.Postponed(error)


def _without_removed(
    removed: Sequence[removals.Removal], rows: Sequence[segment.IndexedFile]
) -> Sequence[segment.IndexedFile]:
    """The files without their removed utterances, which the rows of the recordings name."""
    if not removed:
        return rows
    utterances = [utterance for row in rows for utterance in row.utterances]
    contents = {row.recording.id: row.recording.content_hash for row in rows}
    gone = {utterance.id for utterance in removals.covered(removed, utterances, contents)}
    return [_without(row, gone) if any(utterance.id in gone for utterance in row.utterances) else row for row in rows]


def _without(row: segment.IndexedFile, gone: Collection[str]) -> segment.IndexedFile:
    left_out = tuple(
        removals.RemovedUtterance(
            id=utterance.id,
            channel=utterance.channel,
            start_ms=utterance.start_ms,
            end_ms=utterance.end_ms,
            split=utterance.split,
        )
        for utterance in row.utterances
        if utterance.id in gone
    )
    kept = tuple(utterance for utterance in row.utterances if utterance.id not in gone)
    return segment.IndexedFile(recording=dataclasses.replace(row.recording, removed=left_out), utterances=kept)


def _nothing_usable(figures: IndexFigures) -> DataError:
    reasons = list(figures.reasons.items())[:_REASONS_SHOWN]
    return DataError(
        f"none of {figures.recordings} recordings can be used",
        code="recordings-unusable",
        why=", ".join(f"{reason}: {num}" for reason, num in reasons),
        fix="check that `source.uri` is speech and that the options of `segment` fit it",
    )


def _is_split_by_recording(file: SourceFile) -> bool:
    """Whether its split is drawn at random, without a speaker to keep together."""
    return any(
        entry.split is None and entry.implied_split is None and entry.info.speaker is None for entry in file.entries
    )
