"""score: error rates of files of references and hypotheses, stamped with the versions that computed them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, TypeVar

from voxstill.core import pcm
from voxstill.core.config import Config
from voxstill.core.errors import DataError, StorageError
from voxstill.core.records import ErrorCounts
from voxstill.scoring import checks, figures, meetings, speakers, words
from voxstill.scoring.figures import Unit
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path
from voxstill.text import normalize, rttm, transcripts
from voxstill.text.rttm import RttmEvent, ScoredRegion
from voxstill.text.transcripts import TranscriptSegment

CONFUSIONS = 10
LARGEST = 25_000_000
"""Cells of the table of an alignment: 5,000 words against 5,000, some hundred megabytes."""
Timed = TypeVar("Timed", RttmEvent, ScoredRegion)


def of_words(
    cfg: Config,
    reference: str,
    hypothesis: str,
    *,
    form: str | None = None,
    language: str | None = None,
    normalizer: str | None = None,
    unit: Unit = "words",
    by_speaker: bool = False,
) -> dict[str, Any]:
    """Compute WER and CER of two files, matched by id; a missing hypothesis counts as an empty one.

    DataError where no id is in both, or where speakers are asked for that nobody named.
    """
    references, hypotheses = both(reference, hypothesis, form)
    name, alike = rules(cfg, language, normalizer)
    pairs = [(alike(segment.text), alike(hypotheses.get(id_, ""))) for id_, segment in references.items()]
    rows = [words.score(id_, *pair) for id_, pair in zip(references, pairs, strict=True)]
    names = {id_: segment.speaker for id_, segment in references.items()}
    if by_speaker and not any(names.values()):
        raise DataError(
            f"`{reference}` names no speakers",
            why="Kaldi's text and plain lines cannot",
            fix="give references as JSONL, TRN or STM, or leave out `--by speaker`",
        )
    silence = checks.errors_in_silence(
        (row.words, duration_ms(segment)) for row, segment in zip(rows, references.values(), strict=True)
    )
    split = (str.split, list)[unit == "characters"]
    unlike = [(split(ref), split(hyp)) for ref, hyp in pairs if ref != hyp]
    shown = [pair for pair in unlike if len(pair[0]) * len(pair[1]) <= LARGEST]
    aligned = (words.align(*pair)[1] for pair in shown)
    warnings = checks.check_words(pairs, ErrorCounts.sum(row.words for row in rows))
    if len(shown) < len(unlike):
        warnings.append(f"{len(unlike) - len(shown):,} texts are too long to list their errors, which are counted")
    return {
        **figures.figures(rows, names, cfg, unit),
        "unit": unit,
        **({"by_speaker": figures.rates(words.group_by(rows, lambda row: names[row.id]), unit)} if by_speaker else {}),
        "empty_references": sum(not ref for ref, _ in pairs),
        "empty_hypotheses": sum(not hyp for _, hyp in pairs),
        "without_hypothesis": len(references.keys() - hypotheses.keys()),
        "without_reference": len(hypotheses.keys() - references.keys()),
        "words_in_silence": silence.words,
        "words_per_hour_of_silence": silence.words_per_hour,
        "confusions": [
            {"reference": ref, "hypothesis": hyp, "count": count}
            for (ref, hyp), count in words.confusions(aligned, CONFUSIONS)
        ],
        "warnings": warnings,
        **figures.stamp(name, words.versions()),
    }


def rules(cfg: Config, language: str | None, normalizer: str | None) -> tuple[str, Callable[[str], str]]:
    """Return name and function of the normalizer: the one named, else that of the language, else the configured one."""
    name = normalizer or (normalize.name_for(language) if language else cfg.evaluate.normalizer)
    return name, normalize.normalizer(name, language)


def both(reference: str, hypothesis: str, form: str | None) -> tuple[dict[str, TranscriptSegment], dict[str, str]]:
    """Read references (as rows) and hypotheses (as texts), by id.

    Words of a CTM go into the segments of an STM. DataError where an id comes twice in a file or none is in both.
    """
    first, second = (transcripts.read(uri, form) for uri in (reference, hypothesis))
    forms = [form or transcripts.form_of(uri) for uri in (reference, hypothesis)]
    if forms[0] == "stm":
        ignored = {row.id for row in first if row.text == transcripts.IGNORED}
        second = transcripts.join_by_segment(first, second) if forms[1] == "ctm" else second
        first, second = ([row for row in rows if row.id not in ignored] for rows in (first, second))
    elif "ctm" in forms:
        raise DataError(
            "a CTM has words but no utterances", why="only the segments of an STM tell", fix="give references as STM"
        )
    references, texts = by_id(first, reference), {id_: row.text for id_, row in by_id(second, hypothesis).items()}
    if not references.keys() & texts.keys():
        raise DataError(
            f"`{reference}` and `{hypothesis}` have no id in common",
            why=f"{len(references):,} and {len(texts):,} were read, such as {_first_ids(references, texts)}",
            fix="check that they belong together; lines without ids are `--form text`",
        )
    return references, texts


def by_id(rows: Sequence[TranscriptSegment], uri: str) -> dict[str, TranscriptSegment]:
    """Index rows by id, in their order; DataError for an id that comes twice."""
    rows_by_id: dict[str, TranscriptSegment] = {}
    for row in rows:
        if rows_by_id.setdefault(row.id, row) is not row:
            raise DataError(
                f"`{uri}` says `{row.id}` twice",
                why="an id has one line",
                fix="remove one of them; lines without ids are `--form text`",
            )
    return rows_by_id


def _first_ids(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    return " and ".join(f"`{next(iter(side))}`" if side else "none" for side in (first, second))


def duration_ms(segment: TranscriptSegment) -> int | None:
    """Duration of an utterance in ms; None where its file has no times."""
    return None if segment.start_ms is None or segment.end_ms is None else segment.end_ms - segment.start_ms


def picture(found: Mapping[str, Any]) -> str:
    """Format the figures of words as text for a terminal."""
    unit = found["unit"]
    span = found["interval"]
    sure = f"  (95 % of draws of {found['interval_over']}: {percent(span[0])} to {percent(span[1])})" if span else ""
    names = (("WER", "wer", "words"), ("CER", "cer", "characters"))
    lines = [f"{name}  {percent(found[key]):>8}{sure if of == unit else ''}" for name, key, of in names]
    lines += [
        f"{found['errors']:,} errors in {found[unit]:,} {unit}: {found['substitutions']:,} substitutions,"
        f" {found['insertions']:,} insertions, {found['deletions']:,} deletions",
        f"{found['utterances']:,} utterances: {found['empty_references']:,} empty references,"
        f" {found['empty_hypotheses']:,} empty hypotheses, {found['without_hypothesis']:,} without a hypothesis;"
        f" {found['without_reference']:,} hypotheses without a reference were left out",
    ]
    if found["empty_references"]:
        hourly = found["words_per_hour_of_silence"]
        an_hour = f", {hourly:,.0f} an hour" if hourly is not None else ""
        lines.append(f"{found['words_in_silence']:,} words where nothing was said{an_hour}")
    for name, row in found.get("by_speaker", {}).items():
        rate = row["wer" if unit == "words" else "cer"]
        lines.append(f"  {name:<24}{percent(rate):>9}  {row['errors']:,} of {row[unit]:,}")
    if found["confusions"]:
        lines.append("most frequent errors:")
        lines += [
            f"  {pair['count']:>6,}  {pair['reference'] or '(nothing)'} → {pair['hypothesis'] or '(nothing)'}"
            for pair in found["confusions"]
        ]
    return "\n".join([*lines, *ending(found)])


def ending(found: Mapping[str, Any]) -> list[str]:
    """Format the warnings and the stamp, the last lines of every text."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    by = f"normalizer {found['normalizer']}; " if found["normalizer"] else ""
    return [*(f"warning: {warning}" for warning in found["warnings"]), f"scored by {found['scorer']}; {by}{versions}"]


def percent(rate: float | None) -> str:
    """Format a rate in percent; a dash for None."""
    return "–" if rate is None else f"{100 * rate:.2f} %"


def of_speakers(
    cfg: Config,
    reference: str,
    hypothesis: str,
    *,
    uem: str | None = None,
    collar_s: float = 0.0,
    ignore_overlap: bool = False,
    audio: str | None = None,
) -> dict[str, Any]:
    """Compute the diarization error rate (DER) of two RTTMs as md-eval does, over all recordings of the reference.

    `audio`, a folder or a file, tells how long they are; it changes no rate. DataError where they share no recording.
    """
    references, hypotheses = _by_channel(rttm.read(reference)), _by_channel(rttm.read(hypothesis))
    references = {key: rows for key, rows in references.items() if any(row.kind == "SPEAKER" for row in rows)}
    if not references.keys() & hypotheses.keys():
        raise DataError(
            f"`{reference}` and `{hypothesis}` have no recording in common",
            why=f"{_channels(references)} and {_channels(hypotheses)} were read, with their channels",
            fix="give recordings and channels the same names in both",
        )
    judged_in = _by_channel(rttm.read_uem(uem)) if uem else {}
    total, rows = speakers.SpeakerTime(), []
    lengths_ms, warnings = _lengths(cfg, audio, sorted({session for session, _ in references})) if audio else ({}, [])
    for key, marks in sorted(references.items()):
        other, stretches = hypotheses.get(key, []), judged_in.get(key, [])
        judged = speakers.score_diarization(
            marks, other, stretches, collar_us=round(collar_s * 1e6), ignore_overlap=ignore_overlap
        )
        total += judged.time
        length_ms = lengths_ms.get(key[0])
        row = {"recording": key[0], "channel": key[1], **_times(judged.time), "mapping": dict(judged.mapping)}
        rows.append({**row, "duration_ms": length_ms} if audio else row)
        warnings += [f"{key[0]}: {warning}" for warning in checks.check_turns(marks, other, stretches, length_ms)]
    for what, keys in (
        ("are not in the hypothesis, and all their speech is missed", references.keys() - hypotheses.keys()),
        ("of the hypothesis are not in the reference and were left out", hypotheses.keys() - references.keys()),
        ("are not in the UEM and are judged from their first turn to their last", references.keys() - judged_in.keys()),
    ):
        if keys and (uem or "UEM" not in what):
            warnings.append(f"{len(keys)} recordings {what}: {_channels(keys)}")
    return {
        **_times(total),
        "recordings": rows,
        "collar_s": collar_s,
        "ignore_overlap": ignore_overlap,
        "warnings": [*checks.check_speaker_time(total), *warnings],
        **figures.stamp(None, {}),
    }


def _lengths(cfg: Config, audio: str, sessions: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Decode each recording to its end; return durations in ms by session, and warnings.

    Files are named as recordings are, whatever their ending; one file alone is that of a recording alone.
    """
    from voxstill.audio import (
        read_utterances,
    )
    from voxstill.indexing.formats.webdataset import AUDIO

    files: dict[str, list[str]] = {}
    if is_local(audio) and local_path(audio).is_file():
        files[sessions[0] if len(sessions) == 1 else PurePosixPath(audio).stem] = [audio]
    else:
        store = Store(audio)
        for entry in store.list():
            path = PurePosixPath(entry.key)
            if path.suffix[1:].lower() in AUDIO:
                files.setdefault(path.stem, []).append(store.uri(entry.key))
    lengths_ms, warnings = {}, []
    with read_utterances.reading(cfg).decoder() as decoder:
        for session in (name for name in sessions if name in files):
            uri = min(files[session])
            if len(files[session]) > 1:
                number = len(files[session])
                warnings.append(f"{session}: {number} files are called so, and `{redact_uri(uri)}` was taken")
            try:
                lengths_ms[session] = pcm.samples_to_ms(len(decoder.decode(read_uri(uri)).samples_T))
            except (DataError, StorageError) as error:
                warnings.append(f"{session}: its audio does not tell how long it is: {error.what}")
    if missing := [session for session in sessions if session not in files]:
        warnings.append(f"{len(missing)} recordings have no audio in `{redact_uri(audio)}`: {_names(missing)}")
    return lengths_ms, warnings


def _by_channel(rows: Sequence[Timed]) -> dict[tuple[str, str], list[Timed]]:
    by_channel: dict[tuple[str, str], list[Timed]] = {}
    for row in rows:
        by_channel.setdefault((row.session, row.channel), []).append(row)
    return by_channel


def _channels(keys: Iterable[tuple[str, str]]) -> str:
    return _names([f"{session} {channel}" for session, channel in sorted(keys)])


def _names(names: Sequence[str]) -> str:
    return ", ".join([*(f"`{name}`" for name in names[:3]), *(["..."] if len(names) > 3 else [])]) or "none"


def _times(time: speakers.SpeakerTime) -> dict[str, float | None]:
    return {
        "der": time.rate,
        "scored_ms": time.scored_us / 1000,
        "missed_ms": time.missed_us / 1000,
        "false_alarm_ms": time.false_alarm_us / 1000,
        "confused_ms": time.confused_us / 1000,
    }


def picture_of_speakers(found: Mapping[str, Any]) -> str:
    """Format the figures of speakers as text for a terminal."""
    rows = found["recordings"]
    rows = [*rows, {"recording": "all", "channel": "", **found}] if len(rows) > 1 else rows
    width = max(len(f"{row['recording']} {row['channel']}") for row in rows) + 2
    lines = [f"{'':<{width}}{'DER':>10}{'missed':>12}{'false alarm':>13}{'confused':>12}{'scored':>12}"]
    for row in rows:
        parts = (row[f"{name}_ms"] / 1000 for name in ("missed", "false_alarm", "confused", "scored"))
        times = "".join(f"{part:>{size - 2},.2f} s" for part, size in zip(parts, (12, 13, 12, 12), strict=True))
        lines.append(f"{row['recording'] + ' ' + row['channel']:<{width}}{percent(row['der']):>10}{times}")
    overlap = "not judged" if found["ignore_overlap"] else "judged"
    return "\n".join([*lines, f"collar {found['collar_s']} s either side, overlap {overlap}", *ending(found)])


def of_meetings(
    cfg: Config,
    reference: str,
    hypothesis: str,
    *,
    form: str | None = None,
    language: str | None = None,
    normalizer: str | None = None,
    collar_s: float = 5.0,
) -> dict[str, Any]:
    """Compute cpWER over all sessions of the reference, and tcpWER where both files have times.

    DataError where a row names no session or speaker, or where the files share no session.
    """
    name, alike = rules(cfg, language, normalizer)
    references, hypotheses = (_by_session(transcripts.read(uri, form), uri, alike) for uri in (reference, hypothesis))
    if not references.keys() & hypotheses.keys():
        raise DataError(
            f"`{reference}` and `{hypothesis}` have no session in common",
            why=f"{len(references):,} and {len(hypotheses):,} were read, such as {_first_ids(references, hypotheses)}",
            fix="give sessions the same names in both",
        )
    shared = [references, {key: rows for key, rows in hypotheses.items() if key in references}]
    timed = all(duration_ms(row) is not None for side in shared for rows in side.values() for row in rows)
    total, total_in_time, sessions = ErrorCounts(), ErrorCounts(), []
    for key, rows in sorted(references.items()):
        other = hypotheses.get(key, [])
        errors = meetings.cpwer(rows, other)
        in_time = meetings.tcpwer(rows, other, round(collar_s * 1000)).counts if timed else None
        total += errors.counts
        total_in_time += in_time or ErrorCounts()
        sessions.append(
            {
                "session": key,
                **_meeting(errors.counts, in_time),
                "speakers": [len({row.speaker for row in side}) for side in (rows, other)],
                "mapping": dict(errors.mapping),
            }
        )
    warnings = [] if timed else ["not every row has its times, so that there is no tcpWER"]
    missed, added = sorted(references.keys() - hypotheses.keys()), sorted(hypotheses.keys() - references.keys())
    warnings += [f"{session}: the hypothesis has nothing of this session" for session in missed]
    warnings += [f"{session}: the reference has no such session: left out" for session in added]
    warnings += [
        f"{row['session']}: {row['speakers'][1]} speakers were heard where {row['speakers'][0]} spoke"
        for row in sessions
        if row["speakers"][0] != row["speakers"][1]
    ]
    return {
        **_meeting(total, total_in_time if timed else None),
        "collar_s": collar_s,
        "sessions": sessions,
        "warnings": warnings,
        **figures.stamp(name, words.versions()),
    }


def _by_session(
    rows: Sequence[TranscriptSegment], uri: str, alike: Callable[[str], str]
) -> dict[str, list[TranscriptSegment]]:
    by_session: dict[str, list[TranscriptSegment]] = {}
    for row in rows:
        if row.session is None or row.speaker is None:
            raise DataError(
                f"`{uri}` does not name session and speaker of `{row.id}`",
                why="words of meetings are judged by who said them",
                fix="give STM, SegLST, or JSONL with `session` and `speaker`",
            )
        by_session.setdefault(row.session, []).append(replace(row, text=alike(row.text)))
    return by_session


def _meeting(counts: ErrorCounts, in_time: ErrorCounts | None) -> dict[str, Any]:
    return {
        "cpwer": counts.rate,
        "tcpwer": None if in_time is None else in_time.rate,
        "errors": counts.errors,
        "errors_in_time": None if in_time is None else in_time.errors,
        "words": counts.reference,
        "substitutions": counts.substitutions,
        "insertions": counts.insertions,
        "deletions": counts.deletions,
    }


def picture_of_meetings(found: Mapping[str, Any]) -> str:
    """Format the figures of meetings as text for a terminal."""
    rows = [*found["sessions"], *([{"session": "all", **found}] if len(found["sessions"]) > 1 else [])]
    width = max(len(row["session"]) for row in rows) + 2
    lines = [f"{'':<{width}}{'cpWER':>10}{'tcpWER':>10}{'errors':>9}{'words':>9}"]
    for row in rows:
        both_rates = f"{percent(row['cpwer']):>10}{percent(row['tcpwer']):>10}"
        lines.append(f"{row['session']:<{width}}{both_rates}{row['errors']:>9,}{row['words']:>9,}")
    return "\n".join([*lines, f"tcpWER with a collar of {found['collar_s']} s", *ending(found)])
