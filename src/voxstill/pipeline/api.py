"""The functions that `import voxstill` offers: one for each command, with a `Config` where the shell has options.

All of them return results: frozen dataclasses with `to_dict()`, the JSON of the command, and `to_text()`, what it
prints. Errors are `VoxstillError`s. In the examples `cfg` is the configuration of `my.yaml`, and `experiment` the
folder of a student that was trained with it. Libraries are loaded when a function needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from voxstill.core import config, world

if TYPE_CHECKING:
    from voxstill.core.config import Config
    from voxstill.core.records import ErrorCounts
    from voxstill.core.result import ReportResult
    from voxstill.evaluation.results import Evaluation
    from voxstill.pipeline.compare import RunComparison
    from voxstill.pipeline.compare_teachers import TeacherComparison
    from voxstill.pipeline.control import ControlResult
    from voxstill.pipeline.language_model import LanguageModelResult
    from voxstill.pipeline.plan import PlanResult
    from voxstill.pipeline.replay import ReplayResult
    from voxstill.pipeline.run_result import RunResult
    from voxstill.storage.figures import IndexFigures, LabelFigures, ShardFigures, VerdictFigures
    from voxstill.training.summary import TrainingSummary


def load_config(file: str | Path | None = None, *overrides: str) -> Config:
    """Load a configuration: the defaults, a YAML file, the environment, then `section.key=value` overrides.

    ConfigError where an option is unknown or a value is out of range.

    >>> voxstill.load_config("my.yaml", "train.steps=4").train.steps
    4
    """
    return config.load(None if file is None else str(file), list(overrides), world.environment())


def explain(section: str | None = None) -> list[config.Option]:
    """Every option of a section, or all of them: path, unit, default, limits and meaning.

    >>> [option.path for option in voxstill.explain("shard")][:2]
    ['shard.utterances', 'shard.max_mb']
    """
    from voxstill.pipeline.options import explained

    return explained(section)


def index(cfg: Config) -> IndexFigures:
    """Find the recordings of `source.uri` and cut them into utterances; what is there already is not done again.

    >>> figures = voxstill.index(cfg)
    >>> figures.utterances, figures.damaged
    (12, 0)
    """
    from voxstill.pipeline import index as indexing

    return indexing.index(cfg)


def label(cfg: Config, *, max_chunks: int | None = None, limit_hours: float | None = None) -> LabelFigures:
    """Label every utterance with the teacher, up to the limits; the same call goes on where this one stopped.

    >>> figures = voxstill.label(cfg)
    >>> figures.labels, figures.failed, figures.finished
    (12, 0, True)
    """
    from voxstill.pipeline import label as labelling

    return labelling.label_utterances(cfg, max_chunks=max_chunks, limit_hours=limit_hours)


def control(cfg: Config, overrides: Sequence[str] = (), *, clear: bool = False) -> ControlResult:
    """Change the running labelling jobs of `cfg.work`: add overrides, or with `clear` take all of them back.

    >>> voxstill.control(cfg, ["engine.teachers=2"]).asked
    {'engine': {'teachers': 2}}
    >>> voxstill.control(cfg, clear=True).asked
    {}
    """
    from voxstill.pipeline import control as job_control

    return job_control.control(cfg, overrides, clear=clear)


def compare_teachers(
    cfg: Config, recipes: Sequence[str] = (), *, price_per_hour: float | None = None
) -> TeacherComparison:
    """Compare the finished labels of several teachers: agreement, error rate, speed and cost.

    >>> other = voxstill.load_config("my.yaml", "teacher={name: echo, substitute: 0.5}")
    >>> _ = voxstill.label(other)
    >>> [teacher.labels for teacher in voxstill.compare_teachers(cfg).teachers]
    [12, 12]
    """
    from voxstill.pipeline import compare_teachers as comparison

    return comparison.compared(cfg, recipes, price_per_hour)


def filter(cfg: Config) -> VerdictFigures:  # noqa: A001  # it is the name of the step
    """Judge every label: kept, or dropped with a reason.

    >>> figures = voxstill.filter(cfg)
    >>> figures.kept, figures.judged
    (1.0, 9)
    """
    from voxstill.pipeline import filter as filtering

    return filtering.filter_labels(cfg)


def shard(cfg: Config) -> ShardFigures:
    """Write the kept utterances as WebDataset tars with Parquet sidecars.

    >>> figures = voxstill.shard(cfg)
    >>> figures.shards, figures.utterances
    (2, 9)
    """
    from voxstill.pipeline import shard as sharding

    return sharding.shard(cfg)


def plan(where: str | Path, cfg: Config, *, ranks: int = 1, epoch: int = 0) -> PlanResult:
    """Plan the batches of an epoch before any audio is read: of a work folder, of shards, or of Parquet files.

    >>> result = voxstill.plan(cfg.work, cfg, ranks=2)
    >>> result.utterances >= 6, result.ranks
    (True, 2)
    """
    from voxstill.pipeline import plan as planning

    return planning.plan_(str(where), ranks, epoch, cfg)


def train_lm(cfg: Config, source: str | Path, output: str | Path, *, order: int = 3) -> LanguageModelResult:
    """Train an n-gram language model for decoding on texts, or on the labels of a work folder.

    >>> result = voxstill.train_lm(cfg, cfg.work, "words.arpa", order=2)
    >>> len(result.ngrams)
    2
    """
    from voxstill.pipeline import language_model

    return language_model.train_lm(cfg, str(source), str(output), order)


def pretrain(cfg: Config) -> TrainingSummary:
    """Pre-train a model on audio without labels, for students to start from.

    >>> audio_only = voxstill.load_config("my.yaml", "train.name=pretrained", "pretrain.crop_ms=1000")
    >>> voxstill.pretrain(audio_only).steps
    2
    """
    from voxstill.pipeline import pretrain as pretraining

    return pretraining.pretrain(cfg)


def train(cfg: Config) -> TrainingSummary:
    """Train a student in an experiment folder; the same call again resumes it, or returns what is finished.

    >>> summary = voxstill.train(cfg)
    >>> summary.steps, summary.dev_metric
    (2, 'dev_wer')
    """
    from voxstill.pipeline import train as training

    return training.train(cfg)


def replay(experiment: str | Path, batch: str | Path) -> ReplayResult:
    """Find what was wrong with a step that training skipped: loss and gradient of each of its utterances.

    `batch` is a file in the folder `skipped` of the experiment; DataError where it is none.

    >>> voxstill.replay(experiment, "my.yaml")
    Traceback (most recent call last):
    voxstill.core.errors.DataError: ...
    """
    from voxstill.pipeline import replay as replaying

    return replaying.replay(str(experiment), str(batch))


def evaluate(model: str | Path, cfg: Config | None = None) -> Evaluation:
    """Measure the error rates of a student on `evaluate.split`, with intervals, or how well it classifies.

    `cfg` says where the utterances are; by default it is the configuration of the experiment.

    >>> evaluation = voxstill.evaluate(experiment)
    >>> evaluation.figures["utterances"]
    3
    """
    from voxstill.pipeline import evaluate as evaluation

    return evaluation.evaluate(cfg or load_config(Path(model) / "config.yaml"), str(model))


def compare(
    first: str | Path, second: str | Path, references: str | Path | None = None, cfg: Config | None = None
) -> RunComparison:
    """Test whether one of two recognisers makes fewer errors, with a p-value: evaluated experiments, or files of texts.

    >>> _ = Path("ref.txt").write_text("a turn it on\\nb turn it off\\n")
    >>> _ = Path("hyp1.txt").write_text("a turn it on\\nb turn it of\\n")
    >>> _ = Path("hyp2.txt").write_text("a turn on\\nb turn of\\n")
    >>> comparison = voxstill.compare("hyp1.txt", "hyp2.txt", "ref.txt")
    >>> [run["errors"] for run in comparison.runs]
    [1, 3]
    """
    from voxstill.pipeline import compare as comparison

    cfg = cfg or load_config()
    both = comparison.sides(cfg, str(first), str(second), None if references is None else str(references))
    return comparison.runs(cfg, both)


def run(cfg: Config) -> RunResult:
    """Run all steps from raw audio to an evaluated student and its report; finished steps are skipped.

    >>> result = voxstill.run(cfg)
    >>> [step.step for step in result.steps]
    ['index', 'label', 'filter', 'shard', 'train', 'evaluate', 'report']
    """
    from voxstill.pipeline import end_to_end

    return end_to_end.run(cfg)


def dry_run(cfg: Config, max_batches: int | None = None) -> RunResult:
    """Run all steps on a few files, in folders of their own, and estimate what the whole would take.

    >>> result = voxstill.dry_run(cfg, max_batches=2)
    >>> result.rehearsal.files
    12
    """
    from voxstill.pipeline import dry_run as rehearsal

    return rehearsal.dry_run(cfg, max_batches)


def run_demo(work: str | Path = "work/demo", *overrides: str) -> RunResult:
    """Run all steps on a corpus that it makes itself: no network, no GPU, six minutes with the defaults.

    >>> result = voxstill.run_demo("work/demo", "train.steps=200")  # doctest: +SKIP
    """
    from voxstill.core.command import work_override
    from voxstill.pipeline import end_to_end

    cfg = load_config(None, work_override(str(work)), *end_to_end.DEMO, *overrides)
    return end_to_end.demo(cfg, str(work))


def wer(pairs: Iterable[tuple[str, str]]) -> ErrorCounts:
    """Word errors of pairs of reference and hypothesis, compared as they stand; `rate` of the counts is the WER.

    >>> counts = voxstill.wer([("turn on the light", "turn off light")])
    >>> counts.errors, counts.rate
    (2, 0.5)
    """
    from voxstill.scoring import words

    return words.wer(pairs)


def score_words(reference: str | Path, hypothesis: str | Path, cfg: Config | None = None) -> ReportResult:
    """WER and CER, with intervals, of two files of texts matched by id: Kaldi text, JSONL, STM, CTM or TRN.

    >>> _ = Path("ref.txt").write_text("a turn it on\\nb turn it off\\n")
    >>> _ = Path("hyp.txt").write_text("a turn it on\\nb turn it of\\n")
    >>> voxstill.score_words("ref.txt", "hyp.txt").figures["errors"]
    1
    """
    from voxstill.core.result import ReportResult
    from voxstill.evaluation import score

    scores = score.of_words(cfg or load_config(), str(reference), str(hypothesis))
    return ReportResult(figures=scores.to_dict(), text=scores.to_text())


def score_speakers(
    reference: str | Path,
    hypothesis: str | Path,
    cfg: Config | None = None,
    *,
    uem: str | Path | None = None,
    collar_s: float = 0.0,
    ignore_overlap: bool = False,
) -> ReportResult:
    """Diarization error rate (DER) of two RTTM files, as md-eval counts it.

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
    )
    return ReportResult(figures=scores.to_dict(), text=scores.to_text())


def score_meetings(
    reference: str | Path, hypothesis: str | Path, cfg: Config | None = None, *, collar_s: float = 5.0
) -> ReportResult:
    """Word error rates of meetings, cpWER and tcpWER, of two files with speakers: STM, SegLST or JSONL.

    >>> _ = Path("ref.stm").write_text("talk 1 ann 0.0 2.0 turn it on\\ntalk 1 bob 2.0 4.0 turn it off\\n")
    >>> _ = Path("hyp.stm").write_text("talk 1 s1 0.0 2.0 turn it on\\ntalk 1 s2 2.0 4.0 turn it of\\n")
    >>> round(voxstill.score_meetings("ref.stm", "hyp.stm").figures["cpwer"], 3)
    0.167
    """
    from voxstill.core.result import ReportResult
    from voxstill.evaluation import score_meetings

    scores = score_meetings.of_meetings(cfg or load_config(), str(reference), str(hypothesis), collar_s=collar_s)
    return ReportResult(figures=scores.to_dict(), text=scores.to_text())
