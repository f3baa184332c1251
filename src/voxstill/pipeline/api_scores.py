"""The functions that `import voxstill` offers to judge students, teachers and files of other tools."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from voxstill.core.arguments import string_pairs, strings
from voxstill.core.config import takes_config
from voxstill.pipeline.api import load_config

if TYPE_CHECKING:
    from voxstill.core.config import Config
    from voxstill.core.records import ErrorCounts
    from voxstill.core.result import ReportResult
    from voxstill.evaluation.results import Evaluation
    from voxstill.pipeline.compare import RunComparison
    from voxstill.pipeline.compare_teachers import TeacherComparison
    from voxstill.pipeline.report import ExperimentReport


@takes_config
def evaluate(
    model: str | Path, cfg: Config | None = None, *, by: str | Sequence[str] = (), show: int = 0
) -> Evaluation:
    """Measure the error rates of a student on `evaluate.split`, with intervals, or how well it classifies.

    `model` is an experiment folder, a checkpoint in it (`EXP/checkpoints/best`), a model folder or a name on the
    Hugging Face Hub. `cfg` says where the utterances are; by default it is the configuration of the experiment, and
    without one the defaults. `by` are further fields of the manifest by which errors are broken down, and `show` is how
    many of the worst utterances `to_text()` aligns.

    >>> evaluation = voxstill.evaluate(experiment)
    >>> evaluation.figures["utterances"]
    3
    """
    fields = strings("by", by)
    from voxstill.pipeline import evaluate as evaluation

    return evaluation.evaluate(cfg or load_config(evaluation.own_config(str(model))), str(model), fields, show)


def report(experiment: str | Path) -> ExperimentReport:
    """Write the page of a trained experiment, from the results of its evaluations; returns a line for each result.

    It has learning curves, the most frequent errors, all utterances, and a paired test of student and teacher.
    ConfigError if the folder is not an experiment.

    >>> _ = voxstill.evaluate(experiment)
    >>> voxstill.report(experiment).results[0]["split"]
    'test'
    """
    from voxstill.pipeline import report as reporting

    return reporting.report(str(experiment))


@takes_config
def compare_teachers(
    cfg: Config,
    recipes: str | Sequence[str] = (),
    *,
    price_per_hour: float | None = None,
    report: str | Path | None = None,
) -> TeacherComparison:
    """Compare the finished labels of several teachers: agreement, error rate, speed and cost.

    `price_per_hour` is that of an hour of the machine; `report` is the file of a page with audio.

    >>> other = voxstill.load_config("my.yaml", "teacher={name: echo, substitute: 0.5}")
    >>> _ = voxstill.label(other)
    >>> [teacher.labels for teacher in voxstill.compare_teachers(cfg).teachers]
    [12, 12]
    """
    chosen = strings("recipes", recipes)
    from voxstill.pipeline import compare_teachers as comparison

    result = comparison.compared(cfg, chosen, price_per_hour)
    if report is None:
        return result
    from voxstill.storage.files import write_page

    return dataclasses.replace(result, report=write_page(comparison.page(cfg, result), report))


@takes_config
def compare(
    first: str | Path,
    second: str | Path,
    references: str | Path | None = None,
    cfg: Config | None = None,
    *,
    report: str | Path | None = None,
    form: str | None = None,
    language: str | None = None,
    normalizer: str | None = None,
) -> RunComparison:
    """Test whether one of two recognisers makes fewer errors, with a p-value: evaluated experiments, results in them
    (`EXP/evaluation/NAME`), or files of texts.

    `report` is the file of a page with every utterance as both recognised it; the other options are as for
    `score_words`.

    >>> _ = Path("ref.txt").write_text("a turn it on\\nb turn it off\\n")
    >>> _ = Path("hyp1.txt").write_text("a turn it on\\nb turn it of\\n")
    >>> _ = Path("hyp2.txt").write_text("a turn on\\nb turn of\\n")
    >>> comparison = voxstill.compare("hyp1.txt", "hyp2.txt", "ref.txt")
    >>> [run["errors"] for run in comparison.runs]
    [1, 3]
    """
    from voxstill.pipeline import compare as comparison

    cfg = cfg or load_config()
    both = comparison.sides(
        cfg,
        str(first),
        str(second),
        None if references is None else str(references),
        form=form,
        language=language,
        normalizer=normalizer,
    )
    result = comparison.runs(cfg, both)
    if report is None:
        return result
    from voxstill.pipeline import compare_page  # torch comes with it
    from voxstill.storage.files import write_page

    return dataclasses.replace(result, report=write_page(compare_page.comparison(cfg, both, result.to_dict()), report))


def wer(pairs: Iterable[tuple[str, str]]) -> ErrorCounts:
    """Word errors of pairs of reference and hypothesis, compared as they stand; `rate` of the counts is the WER.

    ConfigError if something in `pairs` is no pair of strings.

    >>> counts = voxstill.wer([("turn on the light", "turn off light")])
    >>> counts.errors, counts.rate
    (2, 0.5)
    """
    from voxstill.scoring import words

    return words.wer(string_pairs("pairs", pairs))


@takes_config
def score_words(
    reference: str | Path,
    hypothesis: str | Path,
    cfg: Config | None = None,
    *,
    form: str | None = None,
    language: str | None = None,
    normalizer: str | None = None,
    cer: bool | None = None,
    by: str | None = None,
    show: int = 0,
) -> ReportResult:
    """WER and CER, with intervals, of two files of texts matched by id: Kaldi text, JSONL, STM, CTM or TRN.

    `form` is that of both files, by default by their endings: kaldi, text, jsonl, trn, stm, ctm or seglst.
    `normalizer` is none, basic, whisper, ... or that of a `language`, else that of `cfg`. With `cer` characters are
    counted and shown instead of words; where it is None, words are if spaces stand between them. `by` is a field of the
    references, such as `speaker`, and `show` how many of the worst utterances `to_text()` aligns. ConfigError for an
    unknown name.

    >>> _ = Path("ref.txt").write_text("a turn it on\\nb turn it off\\n")
    >>> _ = Path("hyp.txt").write_text("a turn it on\\nb turn it of\\n")
    >>> voxstill.score_words("ref.txt", "hyp.txt").figures["errors"]
    1
    """
    from voxstill.core.result import ReportResult
    from voxstill.evaluation import score

    scores = score.of_words(
        cfg or load_config(),
        str(reference),
        str(hypothesis),
        form=form,
        language=language,
        normalizer=normalizer,
        unit=None if cer is None else "characters" if cer else "words",
        by=by,
        show=show,
    )
    return ReportResult(figures=scores.to_dict(), text=scores.to_text())


@takes_config
def score_speakers(
    reference: str | Path,
    hypothesis: str | Path,
    cfg: Config | None = None,
    *,
    uem: str | Path | None = None,
    collar_s: float = 0.0,
    audio: str | Path | None = None,
    ignore_overlap: bool = False,
) -> ReportResult:
    """Diarization error rate (DER) of two RTTM files, as md-eval counts it.

    `uem` says what is scored; `collar_s` seconds either side of a turn are not. `audio`, a folder or a file, is for a
    warning of turns after the end of a recording.

    >>> _ = Path("ref.rttm").write_text("SPEAKER talk 1 0.0 4.0 <NA> <NA> ann <NA> <NA>\\n")
    >>> _ = Path("hyp.rttm").write_text("SPEAKER talk 1 0.0 3.0 <NA> <NA> s1 <NA> <NA>\\n")
    >>> voxstill.score_speakers("ref.rttm", "hyp.rttm").figures["der"]
    0.25
    """
    from voxstill.core.result import ReportResult
    from voxstill.evaluation import score_speakers

    scores = score_speakers.of_speakers(
        cfg or load_config(),
        str(reference),
        str(hypothesis),
        uem=None if uem is None else str(uem),
        collar_s=collar_s,
        ignore_overlap=ignore_overlap,
        audio=None if audio is None else str(audio),
    )
    return ReportResult(figures=scores.to_dict(), text=scores.to_text())


@takes_config
def score_meetings(
    reference: str | Path,
    hypothesis: str | Path,
    cfg: Config | None = None,
    *,
    form: str | None = None,
    language: str | None = None,
    normalizer: str | None = None,
    collar_s: float = 5.0,
) -> ReportResult:
    """Word error rates of meetings, cpWER and tcpWER, of two files with speakers: STM, SegLST or JSONL.

    `collar_s` is that of tcpWER, in seconds; the other options are as for `score_words`.

    >>> _ = Path("ref.stm").write_text("talk 1 ann 0.0 2.0 turn it on\\ntalk 1 bob 2.0 4.0 turn it off\\n")
    >>> _ = Path("hyp.stm").write_text("talk 1 s1 0.0 2.0 turn it on\\ntalk 1 s2 2.0 4.0 turn it of\\n")
    >>> round(voxstill.score_meetings("ref.stm", "hyp.stm").figures["cpwer"], 3)
    0.167
    """
    from voxstill.core.result import ReportResult
    from voxstill.evaluation import score_meetings

    scores = score_meetings.of_meetings(
        cfg or load_config(),
        str(reference),
        str(hypothesis),
        form=form,
        language=language,
        normalizer=normalizer,
        collar_s=collar_s,
    )
    return ReportResult(figures=scores.to_dict(), text=scores.to_text())
