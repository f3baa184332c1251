"""What looks after a corpus, as functions: synthetic voices, alignment, export, a page, checks, removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from voxstill.core.arguments import strings
from voxstill.core.config import takes_config

if TYPE_CHECKING:
    from voxstill.core.config import Config
    from voxstill.pipeline.align import AlignResult
    from voxstill.pipeline.clean import CleanResult
    from voxstill.pipeline.doctor.checks import DoctorResult
    from voxstill.pipeline.explore import ExploreResult
    from voxstill.pipeline.export_labels import ExportResult
    from voxstill.pipeline.export_labels import Form as LabelFormat
    from voxstill.pipeline.reap import ReapResult
    from voxstill.pipeline.remove import RemoveResult
    from voxstill.pipeline.verify import VerifyResult
    from voxstill.pipeline.voices import VoicesResult

_IDS = 'give a list, ids=["..."], or of a file with an id in each line: ids=Path("ids.txt").read_text().splitlines()'


@takes_config
def voices(
    cfg: Config, texts: str | Path, output: str | Path, *, hours: float = 1.0, language: str = "en"
) -> VoicesResult:
    """Make a folder of synthetic speech of a grammar or a text file, with a manifest; `cfg.seed` decides the voices.

    A folder that is complete is not made again. ConfigError if it holds something else, DataError if there are
    no sentences.

    >>> Path("texts.txt").write_text("turn on the light")
    17
    >>> voxstill.voices(cfg, "texts.txt", "voices", hours=0.001).sentences
    1
    """
    from voxstill.pipeline import voices as synthesis

    return synthesis.voices(str(texts), str(output), hours, language, cfg.seed)


@takes_config
def align(
    cfg: Config,
    audio: str | Path,
    text: str | Path,
    output: str | Path,
    *,
    model: str | None = None,
    overwrite: bool = False,
) -> AlignResult:
    """Cut a long recording with its transcript into labelled utterances: a JSONL manifest that `index` reads.

    `model` is a CTC model, `filter.aligner` where it is None. ConfigError if there is none, or the manifest exists
    and may not be overwritten; DataError if text and audio cannot belong together.

    >>> voxstill.align(cfg, "speech.wav", "my.yaml", "aligned.jsonl")
    Traceback (most recent call last):
    voxstill.core.errors.ConfigError: ...
    """
    from voxstill.pipeline import align as alignment

    return alignment.align(cfg, str(audio), str(text), str(output), model=model, overwrite=overwrite)


@takes_config
def export_labels(
    cfg: Config,
    output: str | Path,
    form: LabelFormat = "jsonl",
    *,
    scores: bool = False,
    verdicts: bool = False,
    kept: bool = False,
    overwrite: bool = False,
) -> ExportResult:
    """Write the labels as a file or folder that other tools read: a manifest, cuts, a Kaldi directory, subtitles.

    `scores` and `verdicts` add those of the filter; with `kept` only what it kept is written.

    >>> voxstill.export_labels(cfg, "labels.csv", "csv").utterances
    12
    """
    from voxstill.pipeline import export_labels as exporting

    return exporting.export_labels(
        cfg, str(output), form, scores=scores, verdicts=verdicts, kept=kept, overwrite=overwrite
    )


@takes_config
def verify(where: str | Path, cfg: Config, *, repair: bool = False) -> VerifyResult:
    """Compare what is on disk with what was written: the tables and shards of a work folder, or an experiment.

    With `repair` what `cfg` makes of a broken work folder is made again, and no more.

    >>> result = voxstill.verify(cfg.work, cfg)
    >>> result.broken, result.repaired
    ([], [])
    """
    from voxstill.pipeline import verify as verifying

    return verifying.verify(str(where), cfg, repair=repair)


@takes_config
def remove(
    cfg: Config, ids: Sequence[str] = (), reason: str | None = None, *, speakers: str | Sequence[str] = ()
) -> RemoveResult:
    """Leave utterances or recordings out of every later table and shard; a second call with the same ids does nothing.

    `speakers` stands for the ids of all their utterances that are indexed now: those of later ones are not recorded.
    DataError if an id or a speaker is not known in `cfg.work`; then none is removed. ConfigError if
    `ids` is one string, or the path of a file: they are a list.

    >>> voxstill.remove(cfg, ["nobody"])
    Traceback (most recent call last):
    voxstill.core.errors.DataError: ...
    """
    listed, names = strings("ids", ids, several=_IDS), strings("speakers", speakers)
    from voxstill.pipeline import remove as removing

    return removing.remove(cfg, listed, reason, speakers=names)


@takes_config
def explore(
    cfg: Config,
    experiments: str | Path | Sequence[str | Path] = (),
    *,
    port: int = 0,
    edit: bool = False,
    judge: str | None = None,
    ready: Callable[[ExploreResult], None] = lambda _: None,
) -> None:
    """Serve the page of a corpus, with experiments side by side, on loopback until SIGTERM or SIGINT.

    `ready` is called with the address once it answers. With `edit` labels can be judged, in the name of `judge`.
    ConfigError if packages are missing or the port is taken, DataError if there is no corpus or no experiment.

    >>> voxstill.explore(cfg, ["exp/nobody"])
    Traceback (most recent call last):
    voxstill.core.errors.DataError: ...
    """
    paths = strings("experiments", experiments)
    from voxstill.pipeline import explore as exploring

    exploring.explore(cfg, paths, port, ready, edit=edit, judge=judge)


@takes_config
def clean(cfg: Config, *, delete: bool = False) -> CleanResult:
    """Find the tables of `cfg.work` that nothing of this configuration uses; with `delete` they are deleted.

    >>> voxstill.clean(cfg).deleted
    False
    """
    from voxstill.pipeline import clean as cleaning

    return cleaning.clean(cfg, delete=delete)


@takes_config
def doctor(cfg: Config, where: str | Path | None = None) -> DoctorResult:
    """Check this machine, or a work folder or an experiment: what is slow or wrong, the worst first, and the fix.

    DataError if a folder is neither. `replay` looks into a step that a training skipped.

    >>> result = voxstill.doctor(cfg, cfg.work)
    >>> {check.state for check in result.checks} <= {"ok", "warn", "fail"}
    True
    """
    from voxstill.pipeline.doctor import look

    return look.doctor(None if where is None else str(where), cfg)


def reap(folder: str | Path | None = None, *, end: bool = False) -> ReapResult:
    """Find what runs that have ended left behind, of one work folder or experiment or of all; with `end` it is ended.

    Found are processes, segments of shared memory and temporary folders, of this user and this machine alone.

    >>> voxstill.reap(cfg.work).ended
    []
    """
    from voxstill.pipeline import reap as reaping

    return reaping.reap(None if folder is None else str(folder), end=end)
