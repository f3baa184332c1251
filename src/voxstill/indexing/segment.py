"""Segment files into utterances: a row for every file, whatever is in it, and what is wrong with it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from voxstill.audio import codec, read_utterances, vad
from voxstill.audio.decoder import Decoder
from voxstill.core import config, pcm
from voxstill.core.config import Segment, Source, sources_of
from voxstill.core.errors import DataError, StorageError, VoxstillError
from voxstill.core.records import Normalization, Recording, Utterance, Word, content_hash, fingerprint
from voxstill.diarization.diarizer import Diarizer
from voxstill.engine import StageWork
from voxstill.indexing import channels, spans
from voxstill.indexing.failure import Failure, FailureKind
from voxstill.indexing.formats import word_times
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.from_header import audio_by_header
from voxstill.indexing.scan import SourceFile, split_of
from voxstill.indexing.speakers import Diarize, SpeakersByChannel
from voxstill.storage.fetch import Blob, RefusedError, fetch, read_many
from voxstill.storage.removals import RemovedUtterance
from voxstill.storage.uri import is_local, split_range


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow(Recording):
    """A recording as the index writes it: with the hash of what the source said of it then."""

    metadata_hash: str | None = field(default=None, metadata={"column": "said"})
    segment_errors: tuple[str, ...] = ()
    """Why some of its segments or channels cannot be used, where others can."""
    content_hash: str | None = None
    """Of the bytes of the file; None of one that was not read whole, and in tables of earlier versions."""
    clipped: float | None = None
    """Share of samples at or beyond full scale before any gain, of the channel that has most."""
    dc_offset: float | None = None
    """Mean of the samples as a share of full scale before any gain, of the channel where it is furthest from 0."""
    origin: str | None = None
    """The compressed tar or Parquet file that it was unpacked from; None of others, and in tables of earlier
    versions."""
    louder_channel: int | None = None
    """The channel that is used in place of the mix, in which the channels cancel one another."""
    untimed: tuple[str, ...] | None = None
    """Why the word times of some of its utterances are not used. None in tables of earlier versions."""
    speaker_doubts: tuple[str, ...] | None = None
    """Why diarization gave no speakers of a channel, or doubtful ones. None if it was not asked, and in tables of
    earlier versions."""
    unused: tuple[Utterance, ...] | None = None
    """What the source names or has words of, and the index cannot use: an evaluation judges it. Utterances of unknown
    length end where they begin. None in tables of earlier versions."""
    removed: tuple[RemovedUtterance, ...] | None = None
    """Its utterances that have no row as they had been removed. None if there are none, and in tables of earlier
    versions."""

    @property
    def failure(self) -> Failure | None:
        """Why it cannot be used; None if it can."""
        return None if self.error is None else Failure.parse(self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedFile:
    """One file: its recording and, where that has no error, its utterances."""

    recording: IndexRow
    utterances: tuple[Utterance, ...] = ()


@dataclass
class Indexer(StageWork):
    """Index files for the engine: files in, one `IndexedFile` for each out, in order; what is far away is read ahead.

    Without `reading` nothing is cached, and files are decoded in the worker itself.
    """

    cfg: Segment
    source: Source | Sequence[Source]
    seed: int
    reading: read_utterances.Reading | None = None
    normalize: Normalization = "none"
    diarization: config.Diarize = field(default_factory=config.Diarize)
    _diarizer: Diarizer | None = field(default=None, init=False, repr=False, compare=False)
    _decoder: Decoder | None = field(default=None, init=False, repr=False, compare=False)

    def open(self) -> None:
        """Start the decoder, and load the diarization engine where one is named."""
        self._decoder = self.reading.decoder() if self.reading is not None else None
        if self.diarization.name is not None:
            self._diarizer = Diarizer(self.diarization)
            self._diarizer.open()

    def __call__(self, files: Sequence[SourceFile], payload: object) -> list[IndexedFile]:
        """Index the files of a chunk; what storage far away does not give is tried again after a pause."""
        rows = self._index(files)
        for pause_s in read_utterances.RETRY_PAUSES_S:
            failed_rows = [i for i, row in enumerate(rows) if _is_remote(files[i]) and _is_unanswered(row)]
            if not failed_rows:
                break
            time.sleep(pause_s)
            for i, row in zip(failed_rows, self._index([files[i] for i in failed_rows]), strict=True):
                rows[i] = row
        return rows

    def _index(self, files: Sequence[SourceFile]) -> list[IndexedFile]:
        cache = None if self.reading is None else self.reading.cache
        decode: Callable[..., codec.Audio] = codec.decode if self._decoder is None else self._decoder.decode
        decode = functools.partial(decode, gain=self.normalize)
        sources = sources_of(self.source)
        known = self._by_header(files)
        to_read = (file.entries[0].uri for file in files if _is_remote(file) and file.id not in known)
        with closing(read_many(to_read, cache=cache)) as blobs:
            return [
                index(
                    file,
                    self.cfg,
                    sources[file.source],
                    self.seed,
                    blob=known.get(file.id) or (next(blobs) if _is_remote(file) else None),
                    decode=decode,
                    diarize=None if self._diarizer is None else self._diarizer.diarize,
                )
                for file in files
            ]

    def _by_header(self, files: Sequence[SourceFile]) -> dict[str, tuple[Blob, codec.Audio]]:
        """What is known of files far away by their headers, by id."""
        if self.cfg.measure == "decode":
            return {}
        sources = sources_of(self.source)
        remote = [file for file in files if _is_remote(file) and sources[file.source].channels == "mix"]
        answers = zip(remote, audio_by_header(remote, self.cfg), strict=True)
        return {file.id: known for file, known in answers if known is not None}

    def close(self) -> None:
        """End the decoder and the engine."""
        if self._decoder is not None:
            self._decoder.close()
        if self._diarizer is not None:
            self._diarizer.close()


def index(
    file: SourceFile,
    cfg: Segment,
    source: Source,
    seed: int,
    blob: Blob | StorageError | RefusedError | tuple[Blob, codec.Audio] | None = None,
    decode: Callable[..., codec.Audio] = codec.decode,
    diarize: Diarize | None = None,
) -> IndexedFile:
    """Read (unless `blob` was), decode and segment one file; whatever is wrong with it is its recording's `error`.

    With the `blob` may come its audio as the header states it: then nothing is decoded. With `diarize` utterances are
    cut at turns, too, and have speakers where the source names none.
    """
    first = file.entries[0]
    not_used = functools.partial(_unused, file, file.entries, source, seed)
    if first.failure is not None:
        return failed(file, first.failure, not_used())
    duration_ms = None
    try:
        by_header = None
        if isinstance(blob, tuple):
            blob, by_header = blob
        blob = fetch(first.uri) if blob is None else blob
        if not isinstance(blob, Blob):
            raise blob
        if _is_another_version(first, blob):
            return failed(file, Failure(FailureKind.UNREADABLE, "it changed while it was indexed"), not_used())
        if by_header is not None:
            by_channel: channels.AudioByChannel = {entry.channel: by_header for entry in file.entries}
            row = _segment(file, file.entries, by_channel, blob, cfg, source, seed)
            unheard = replace(row.recording, content_hash=None, clipped=None, dc_offset=None)
            return replace(row, recording=unheard)
        entries, by_channel = channels.decoded(file.entries, source.channels, functools.partial(decode, blob.data))
        duration_ms = _duration_ms(by_channel)
        return _segment(file, entries, by_channel, blob, cfg, source, seed, diarize)
    except StorageError as error:
        return failed(file, Failure(FailureKind.UNREADABLE, error.why), not_used())
    except RefusedError as error:
        return failed(file, Failure(FailureKind.NOT_READ, error.why), not_used())
    except DataError as error:
        return failed(file, Failure.of(error), not_used(duration_ms))
    except VoxstillError:
        raise  # not the file's fault
    except Exception as error:
        return failed(file, Failure(FailureKind.UNDECODABLE, f"{type(error).__name__}: {error}"), not_used(duration_ms))


def failed(file: SourceFile, failure: Failure, unused: tuple[Utterance, ...] = ()) -> IndexedFile:
    """The row of a file that cannot be used, with what the source says of its utterances."""
    first = file.entries[0]
    recording = IndexRow(
        id=file.id,
        uri=first.uri,
        etag=first.etag,
        num_bytes=first.num_bytes,
        error=failure.text,
        metadata_hash=file.metadata_hash,
        origin=first.origin,
        unused=unused,
    )
    return IndexedFile(recording=recording)


def set_aside(file: SourceFile, reason: str, source: Source | Sequence[Source], seed: int) -> IndexedFile:
    """The row of a file on which the engine's workers failed, for the reason that the engine gives."""
    unused = _unused(file, file.entries, sources_of(source)[file.source], seed)
    return failed(file, Failure.parse(reason), unused)


def _is_unanswered(row: IndexedFile) -> bool:
    failure = row.recording.failure
    return failure is not None and failure.is_transient


def _is_remote(file: SourceFile) -> bool:
    return file.entries[0].failure is None and not is_local(file.entries[0].uri)


def _segment(
    file: SourceFile,
    entries: Sequence[SourceEntry],
    by_channel: channels.AudioByChannel,
    blob: Blob,
    cfg: Segment,
    source: Source,
    seed: int,
    diarize: Diarize | None = None,
) -> IndexedFile:
    """Cut a decoded file into its utterances. Words that were written for more than one of them belong to none."""
    audios = [audio for audio in by_channel.values() if not isinstance(audio, DataError)]
    audio, levels = audios[0], [audio.measured_level for audio in audios]
    duration_ms = _duration_ms(by_channel)
    if duration_ms < cfg.min_ms:
        raise _no_speech(FailureKind.TOO_SHORT, f"it lasts {duration_ms} ms and `segment.min_ms` is {cfg.min_ms}")
    utterances: dict[str, Utterance] = {}
    speakers = SpeakersByChannel(file.id, by_channel, diarize)
    errors, untimed, left_out = list[DataError](), list[str](), list[SourceEntry]()
    for entry in entries:
        audio_or_error = by_channel[entry.channel]
        placed = spans.placed(entry, duration_ms)
        try:
            if isinstance(audio_or_error, DataError):
                raise audio_or_error
            span = spans.span_of(placed, duration_ms)
        except DataError as error:
            errors.append(error)
            left_out.append(placed)
            continue
        words = word_times.of_utterance(placed.words, placed.text, span)
        untimed += [words] if isinstance(words, str) else []
        of_entry = list(_utterances(file, placed, words, audio_or_error, span, cfg, source, seed, speakers))
        utterances |= {utterance.id: utterance for utterance in of_entry}
        if placed.text is not None and all(utterance.text is None for utterance in of_entry):
            left_out.append(placed)
    if not utterances:
        raise errors[0] if errors else _no_speech(FailureKind.NO_SPEECH, "the voice-activity detector found no speech")
    first = file.entries[0]
    recording = IndexRow(
        id=file.id,
        uri=first.uri,
        etag=first.etag or blob.etag,
        num_bytes=_num_bytes(first, blob),
        codec=audio.codec,
        rate_hz=audio.rate_hz,
        num_channels=audio.num_channels,
        duration_ms=duration_ms,
        metadata_hash=file.metadata_hash,
        segment_errors=tuple(Failure.of(error).text for error in errors),
        content_hash=content_hash(blob.data),
        clipped=max([level.clipped for level in levels]),
        dc_offset=max([level.dc_offset for level in levels], key=abs),
        louder_channel=audio.louder_channel,
        origin=first.origin,
        untimed=tuple(untimed),
        speaker_doubts=speakers.doubts,
        unused=_unused(file, left_out, source, seed, duration_ms),
    )
    return IndexedFile(recording=recording, utterances=tuple(utterances.values()))


def _no_speech(kind: FailureKind, why: str) -> DataError:
    return DataError(kind, code="no-speech", why=why)


def _is_another_version(entry: SourceEntry, blob: Blob) -> bool:
    """Whether what was read is not what the source listed: its etag tells, or else its size."""
    if entry.etag and blob.etag:
        return entry.etag != blob.etag
    _, byte_range = split_range(entry.uri)
    return byte_range is None and entry.num_bytes not in (0, blob.num_bytes)


def _num_bytes(entry: SourceEntry, blob: Blob) -> int:
    """Size of a file: the source's, that of the range that its address names, or that of the object."""
    if entry.num_bytes:
        return entry.num_bytes
    _, byte_range = split_range(entry.uri)
    return blob.num_bytes if byte_range is None else byte_range.length


def _utterances(
    file: SourceFile,
    entry: SourceEntry,
    words: tuple[Word, ...] | str | None,
    audio: codec.Audio,
    span: vad.Span,
    cfg: Segment,
    source: Source,
    seed: int,
    speakers: SpeakersByChannel,
) -> Iterator[Utterance]:
    """The utterances of one entry of the source, whose words with times are of the whole of it."""
    for part, speaker in speakers.cut(entry, spans.cut(entry, audio, span, cfg), cfg.min_ms):
        utterance = _utterance(file, entry, part, source, seed, is_whole=part == span, gain_db=audio.gain_db)
        if speaker is not None:
            utterance = replace(utterance, info=replace(utterance.info, speaker=speaker))
        yield replace(utterance, words=words) if part == span and isinstance(words, tuple) else utterance


def _utterance(
    file: SourceFile,
    entry: SourceEntry,
    span: vad.Span,
    source: Source,
    seed: int,
    *,
    is_whole: bool = True,
    gain_db: float | None = None,
) -> Utterance:
    """One utterance of an entry, which has its name and its words where it is the whole of it."""
    start_ms, end_ms = span
    info = entry.info
    language, dataset = info.language or source.language, info.dataset or source.dataset
    if (language, dataset) != (info.language, info.dataset):
        info = replace(info, language=language, dataset=dataset)
    return Utterance(
        id=entry.utterance_id
        if is_whole and entry.utterance_id
        else fingerprint(file.id, entry.channel, start_ms, end_ms),
        recording_id=file.id,
        uri=entry.uri,
        channel=entry.channel,
        start_ms=start_ms,
        end_ms=end_ms,
        split=split_of(entry, source, seed),
        info=info,
        text=entry.text if is_whole else None,
        gain_db=gain_db,
        weight=entry.weight,
        supervised=source.supervised or None,
    )


def _unused(
    file: SourceFile, entries: Sequence[SourceEntry], source: Source, seed: int, duration_ms: int | None = None
) -> tuple[Utterance, ...]:
    """The utterances of entries that cannot be used and have a name or words, which a human wrote."""
    named = (entry for entry in entries if entry.text is not None or entry.utterance_id is not None)
    return tuple(_utterance(file, entry, _stated(entry, duration_ms), source, seed) for entry in named)


def _stated(entry: SourceEntry, duration_ms: int | None) -> vad.Span:
    """The stretch of an entry, as far as it is known; without a known end it is empty."""
    start_ms, end_ms = entry.start_ms or 0, entry.end_ms or duration_ms or entry.duration_ms or 0
    return start_ms, max(start_ms, end_ms)


def _duration_ms(by_channel: channels.AudioByChannel) -> int:
    """Length of the first channel that can be used."""
    audio = next(audio for audio in by_channel.values() if isinstance(audio, codec.Audio))
    return pcm.samples_to_ms(len(audio.samples_T))
