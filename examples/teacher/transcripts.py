"""A teacher for voxstill: what another recogniser said, from a JSONL file of `id`, `text` and perhaps `confidence`."""

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
    """Answers with the line of the utterance's id; an utterance without one is an error of its own."""

    Options: ClassVar[type[Section]] = TranscriptsOptions
    reads_texts: ClassVar[bool] = False  # it is never shown the human texts

    def __init__(self, options: TranscriptsOptions) -> None:
        self.path = Path(options.file)
        self.lines: dict[str, Any] = {}

    def revision(self) -> str:
        """Another file is another teacher."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    def load(self) -> None:
        """Read the file."""
        rows = map(json.loads, self.path.read_text(encoding="utf-8").splitlines())
        self.lines = {row["id"]: row for row in rows}

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        """Return one transcription per clip, in order."""
        return [self.answer(self.lines.get(clip.utterance.id)) for clip in clips]

    def answer(self, row: dict[str, Any] | None) -> Transcription:
        """A line as an answer; where it has no confidence, None says so."""
        if row is None:
            return Transcription(finish="failed", error="the file has no line for it")
        sure = row.get("confidence")
        return Transcription(text=row["text"], mean_logprob=math.log(sure) if sure else None)

    def close(self) -> None:
        """Nothing to give back."""
