"""A teacher as another package would bring it: `echo`, but some utterances make it take memory until there is none."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from voxstill.core.config import Section, option
from voxstill.teachers.echo import EchoOptions, EchoTeacher
from voxstill.teachers.teacher import Clip, Transcription

LIMIT_MB = 300


class GreedyOptions(EchoOptions):
    bomb_on: list[str] = option([])
    """Utterances that need more memory than there is."""


class GreedyTeacher(EchoTeacher):
    Options: ClassVar[type[Section]] = GreedyOptions
    options: GreedyOptions

    def transcribe_batch(self, clips: Sequence[Clip]) -> list[Transcription]:
        if any(clip.utterance.id in self.options.bomb_on for clip in clips):
            pages = int(Path("/proc/self/statm").read_text().split()[5])
            limit = pages * resource.getpagesize() + LIMIT_MB * 2**20
            resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
            blocks = []
            while True:
                blocks.append(bytearray(2**20))
        return super().transcribe_batch(clips)
