"""The engine `command`: any program in an environment of its own, which reads a WAV file and writes RTTM.

So pyannote is used, whose packages do not go with those of voxstill: docs/diarization.md has the script.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import wave
from pathlib import Path
from typing import ClassVar

from voxstill.audio.vad import Samples
from voxstill.core import scratch
from voxstill.core.config import Section, option
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import RATE_HZ
from voxstill.diarization.turns import Turn, numbered
from voxstill.text import rttm

_BLOCK = 1 << 20
_MOST_MESSAGE = 300
_OF_THIS_PYTHON = ("PYTHONPATH", "PYTHONHOME")
"""Variables that would give the program the packages of this environment."""
_MOST_BYTES = 64 << 20


class CommandOptions(Section):
    """Options of the engine `command`."""

    command: list[str] = option()
    """The program and its arguments; the path of a WAV file (16 kHz, one channel, 16 bits) comes as the last one. It
    writes RTTM to standard output and ends with 0."""
    timeout_s: float = option(600.0, unit="s", gt=0, pace=True)
    """A program that takes longer over a recording is ended, and the recording has no turns."""


class CommandEngine:
    """Runs the program once for each recording.

    ConfigError if it is not there.
    """

    Options: ClassVar[type[Section]] = CommandOptions

    def __init__(self, options: CommandOptions) -> None:
        if not options.command:
            raise ConfigError(
                "`diarize.command` is empty",
                code="option-missing",
                why="it contains no program",
                fix="give a program and its arguments",
            )
        if shutil.which(options.command[0]) is None:
            raise _cannot_run(options.command[0], "the program does not exist")
        self.options = options

    def load(self) -> None:
        """Nothing to load: the program loads its model for each recording."""

    def turns(self, samples_T: Samples) -> list[Turn]:
        """The turns that the program writes; DataError if it fails, is too slow, or writes no RTTM."""
        with scratch.folder() as folder:
            audio = folder / "audio.wav"
            _write(audio, samples_T)
            output = folder / "turns.rttm"
            self._run(audio, output)
            try:
                events = [event for event in rttm.read(str(output)) if event.kind == "SPEAKER"]
            except DataError as error:  # without the name of the temporary file, which differs each time
                what = error.what.replace(f"`{output}`", "its output").replace(str(output), "line ")
                raise _failed(self.options.command[0], f"{what}: {error.why}") from None
        return numbered([(event.start_us // 1000, event.end_us // 1000, event.speaker) for event in events])

    def close(self) -> None:
        """Nothing to release."""

    def _run(self, audio: Path, output: Path) -> None:
        program = self.options.command[0]
        messages = output.with_name("messages.txt")
        with output.open("wb") as out, messages.open("wb") as err:
            try:
                process = subprocess.Popen(
                    [*self.options.command, str(audio)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env={name: value for name, value in os.environ.items() if name not in _OF_THIS_PYTHON},
                    start_new_session=True,
                )
            except OSError as error:
                raise _cannot_run(program, error.strerror or str(error)) from None
            code = _ended(process, self.options.timeout_s)
        if code is None:
            raise _failed(program, f"it took longer than `diarize.timeout_s`, {self.options.timeout_s:g} s")
        if code != 0:
            raise _failed(program, f"it ended with {code}: {_last_line(messages)}")
        if output.stat().st_size > _MOST_BYTES:
            raise _failed(program, f"it wrote {output.stat().st_size / 1e6:.0f} MB")


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """The code with which a process ends; None if it does not in time: it and what it started are killed."""
    try:
        return process.wait(timeout_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise


def _write(path: Path, samples_T: Samples) -> None:
    """Write samples as WAV, a part at a time."""
    with wave.open(str(path), "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(RATE_HZ)
        for start in range(0, len(samples_T), _BLOCK):
            wav.writeframes(samples_T[start : start + _BLOCK].astype("<i2").tobytes())


def _last_line(messages: Path) -> str:
    lines = messages.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
    return lines[-1][:_MOST_MESSAGE] if lines else "no message"


def _cannot_run(program: str, why: str) -> ConfigError:
    return ConfigError(
        f"`{program}` cannot be run",
        code="diarization-fails",
        why=why,
        fix="correct `diarize.command`: its first entry must be a program",
    )


def _failed(program: str, why: str) -> DataError:
    return DataError(f"`{program}` has failed", code="diarization-fails", why=why, fix="run it manually on a WAV file")
