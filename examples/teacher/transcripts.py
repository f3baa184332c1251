"""A teacher for voxstill: transcripts of another recogniser, from a JSONL file of `id`, `text` and `confidence`."""

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from voxstill.core.config import Section, option
from voxstill.teachers.teacher import Clip, Transcription


class TranscriptsOptions(Section):
    """Options of the teacher `transcripts`."""

    file: str = option()
    """JSONL file; its ids are those of the manifest."""


class TranscriptsTeacher:
    """Returns the line with the id of the utterance; an utterance without a line is a failed label."""

    Options: ClassVar[type[Section]] = TranscriptsOptions
    reads_texts: ClassVar[bool] = False  # it does not get the human transcripts

    def __init__(self, options: TranscriptsOptions) -> None:
        self.path = Path(options.file)
        self.lines: dict[str, Any] = {}

    def revision(self) -> str:
        """Hash of the file: another file makes another table of labels."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    def load(self) -> None:
        """Read the file."""
        rows = map(json.loads, self.path.read_text(encoding="utf-8").splitlines())
        self.lines = {row["id"]: row for row in rows}

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Return one transcription per clip, in order."""
        return [self.answer(self.lines.get(clip.utterance.id)) for clip in clips]

    def answer(self, row: dict[str, Any] | None) -> Transcription:
        """Convert a line into a transcription; its log-probability is None if the line has no confidence."""
        if row is None:
            return Transcription(finish="failed", error="the file has no line for it")
        confidence = row.get("confidence")
        return Transcription(text=row["text"], mean_logprob=math.log(confidence) if confidence else None)

    def close(self) -> None:
        """Nothing to release."""
