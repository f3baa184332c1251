"""The functions that `import voxstill` offers: those of the commands, with a `Config` where the shell has options.

What an option of the shell makes another action has a function of its own: `shard --from` is `repack`. Here are those
that make something; `api_scores` has those that judge, `api_corpus` those that look after a work folder,
`api_inference` those that use a finished student.

Where several names are expected, one may stand alone: `"a.wav"` is `["a.wav"]`. Only `remove` refuses that.

All of them return results: frozen dataclasses with `to_dict()`, the JSON of the command, and `to_text()`, what it
prints. Errors are `VoxstillError`s. In the examples `cfg` is the configuration of `my.yaml`, and `experiment` the
folder of a student that was trained with it. Libraries are loaded when a function needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from voxstill.core import config, world
from voxstill.core.arguments import strings, text
from voxstill.core.config import takes_config

if TYPE_CHECKING:
    from voxstill.core.config import Config
    from voxstill.core.result import ReportResult
    from voxstill.filtering.tuning import TuneResult
    from voxstill.pipeline.control import ControlResult
    from voxstill.pipeline.control_training import TrainingControlResult
    from voxstill.pipeline.estimate import EstimateResult
    from voxstill.pipeline.language_model import LanguageModelResult
    from voxstill.pipeline.plan import PlanResult
    from voxstill.pipeline.preview_augmentation import Preview
    from voxstill.pipeline.replay import ReplayResult
    from voxstill.pipeline.run_result import RunResult
    from voxstill.storage.figures import IndexFigures, LabelFigures, ShardFigures, VerdictFigures
    from voxstill.training.summary import TrainingSummary


def load_config(file: str | Path | None = None, *overrides: str) -> Config:
    """Load a configuration: the defaults, a YAML file, the environment, then `section.key=value` overrides.

    ConfigError if an option is unknown or a value is out of range.

    >>> voxstill.load_config("my.yaml", "train.steps=4").train.steps
    4
    """
    return config.load(None if file is None else str(file), list(overrides), world.environment())


def create_config(output: str | Path | None = None, *, overwrite: bool = False) -> ReportResult:
    """Make a commented configuration with every option: as text, or written to a file.

    ConfigError if the file exists, unless it may be overwritten.

    >>> print(voxstill.create_config().to_text().splitlines()[0])
    # voxstill configuration. Commented options show their defaults: remove `# ` to change one.
    >>> voxstill.create_config("new.yaml").figures
    {'path': 'new.yaml'}
    """
    from voxstill.pipeline import template

    return template.create_config(None if output is None else str(output), overwrite=overwrite)


def explain(section: str | None = None) -> list[config.Option]:
    """Every option of a section, or all of them: path, unit, default, limits and meaning.

    >>> [option.path for option in voxstill.explain("shard")][:2]
    ['shard.utterances', 'shard.max_mb']
    """
    from voxstill.pipeline.options import explained

    return explained(section if section is None else text("section", section))


@takes_config
def preview_augmentation(cfg: Config, output: str | Path = "heard") -> Preview:
    """Write audio of the source to a folder as WAV files: unchanged, and after each augmentation.

    DataError if nothing of the source can be read.

    >>> preview = voxstill.preview_augmentation(cfg, "augmented")
    >>> preview.files[0]["file"], preview.files[0]["what"]
    ('augmented/1-before.wav', 'original')
    """
    from voxstill.pipeline import preview_augmentation as previewing

    return previewing.augmentation(cfg, Path(output))


@takes_config
def index(cfg: Config, *, part: str | None = None) -> IndexFigures:
    """Find the recordings of `source.uri` and cut them into utterances; existing results are not made again.

    With `part`, such as "1/4", only a quarter of the files is indexed, while other processes index the others.

    >>> figures = voxstill.index(cfg)
    >>> figures.utterances, figures.damaged
    (12, 0)
    """
    from voxstill.pipeline import index as indexing

    return indexing.index(cfg, part=part)


@takes_config
def label(
    cfg: Config,
    *,
    max_chunks: int | None = None,
    limit_hours: float | None = None,
    retry_failed: bool = False,
    part: str | None = None,
    allow_teacher: str | Sequence[str] = (),
) -> LabelFigures:
    """Label every utterance with the teacher, up to the limits; the same call resumes where this one stopped.

    With `retry_failed` labels that failed before are made again. With `part`, such as "1/4", only a quarter of the
    chunks is labelled, while other processes label the others. `allow_teacher` names the teachers that `control` may
    change to, each a name or a mapping of options in YAML.

    >>> figures = voxstill.label(cfg)
    >>> figures.labels, figures.failed, figures.finished
    (12, 0, True)
    """
    teachers = strings("allow_teacher", allow_teacher)
    from voxstill.pipeline import label as labelling

    return labelling.label_utterances(
        cfg,
        max_chunks=max_chunks,
        limit_hours=limit_hours,
        retry_failed=retry_failed,
        part=part,
        allow_teacher=teachers,
    )


@takes_config
def control(cfg: Config, overrides: str | Sequence[str] = (), *, clear: bool = False) -> ControlResult:
    """Change the running labelling jobs of `cfg.work`: add overrides, or with `clear` take all of them back.

    >>> voxstill.control(cfg, ["engine.teachers=2"]).asked
    {'engine': {'teachers': 2}}
    >>> voxstill.control(cfg, clear=True).asked
    {}
    """
    asked = strings("overrides", overrides)
    from voxstill.pipeline import control as job_control

    return job_control.control(cfg, asked, clear=clear)


def control_training(
    experiment: str | Path, overrides: str | Sequence[str] = (), *, clear: bool = False, stop_after_epoch: bool = False
) -> TrainingControlResult:
    """Change a running training: add overrides, let it end with its epoch, or with `clear` take all of it back.

    >>> voxstill.control_training("exp/2026-11-20_09-12-44_mine", ["train.steps=9000"]).asked  # doctest: +SKIP
    {'train': {'steps': 9000}}
    """
    asked = strings("overrides", overrides)
    from voxstill.pipeline import control_training as training_control

    return training_control.control_training(experiment, asked, clear=clear, stop_after_epoch=stop_after_epoch)


@takes_config
def filter(  # noqa: A001  # it is the name of the step
    cfg: Config, *, part: str | None = None, partial: bool = False, report: str | Path | None = None
) -> VerdictFigures:
    """Judge every label: kept, or dropped with a reason.

    With `part`, such as "1/4", only a quarter of the labels is measured, while other processes measure the others; the
    last one judges. With `partial` the labels that are there are judged, though labelling has not ended. `report` is
    the file of a page of what was kept, and why not.

    >>> figures = voxstill.filter(cfg)
    >>> figures.kept, figures.judged
    (1.0, 9)
    """
    from voxstill.pipeline import filter as filtering

    figures = filtering.filter_labels(cfg, part=part, partial=partial)
    if report is None:
        return figures
    from voxstill.pipeline import filter_report

    return filter_report.write(cfg, figures, str(report))


@takes_config
def tune_filter(cfg: Config) -> TuneResult:
    """Propose thresholds of the filter by the labels that have a human text; no verdict is made or changed.

    DataError if there are no human texts, or where the teacher learnt from them.

    >>> other = voxstill.load_config("my.yaml", "teacher={name: echo, substitute: 0.5}")
    >>> _ = voxstill.label(other)
    >>> tuned = voxstill.tune_filter(other)
    >>> tuned.labels, tuned.words
    (12, 36)
    """
    from voxstill.pipeline import tune_filter as tuning

    return tuning.tune(cfg)


@takes_config
def shard(cfg: Config, *, unlabelled: bool = False, part: str | None = None) -> ShardFigures:
    """Write the kept utterances as WebDataset tars with Parquet sidecars.

    With `unlabelled` it is all utterances but those of the test split, without labels, for `pretrain`.
    With `part`, such as "1/4", only every fourth shard is written, while other processes write the others.

    >>> figures = voxstill.shard(cfg)
    >>> figures.shards, figures.utterances
    (2, 9)
    """
    from voxstill.pipeline import shard as sharding

    return sharding.shard_unlabelled(cfg, part=part) if unlabelled else sharding.shard(cfg, part=part)


@takes_config
def repack(cfg: Config, sources: str | Path | Sequence[str | Path], *overrides: str) -> ShardFigures:
    """Write what has a human text in tars or folders as shards in `cfg.work`, whole and unfiltered.

    The overrides, `section.key=value`, come after what repacking sets of the teacher, the segments and the filter.

    >>> packed = voxstill.repack(voxstill.load_config("my.yaml", "work=packed"), ["manifest.jsonl"])
    >>> packed.utterances, packed.left_out
    (9, {'of the test split': 3})
    """
    names = strings("sources", sources)
    from voxstill.pipeline import shard as sharding

    return sharding.repack_sources(cfg, names, *overrides)


@takes_config
def plan(
    where: str | Path, cfg: Config, *, ranks: int | None = None, epoch: int = 0, pretrain: bool = False
) -> PlanResult:
    """Plan the batches of an epoch before any audio is read: of a work folder, of shards, or of Parquet files.

    `ranks` is the number of processes that train together, `train.devices` where it is None; Parquet files have one
    then. With `pretrain` the batches are those of `pretrain`, else of `train`. ConfigError if the ranks do not
    divide the batches of a step.

    >>> result = voxstill.plan(cfg.work, cfg, ranks=2)
    >>> result.utterances >= 6, result.ranks
    (True, 2)
    """
    from voxstill.pipeline import plan as planning

    return planning.plan_(str(where), ranks, epoch, cfg, pretrain=pretrain)


@takes_config
def estimate(
    cfg: Config, *, gpu: str | None = None, price: float | None = None, probe: bool = False, pretrain: bool = False
) -> EstimateResult:
    """Estimate memory, time, cost and disk of a training before it starts, and the largest batches that fit.

    `gpu` is the name of a card, this machine where it is None; `price` that of an hour of it. With `probe` a minute of
    labelling is tried where nothing is labelled. With `pretrain` it is of `pretrain`, else of `train`. ConfigError
    where the card is not known.

    >>> estimated = voxstill.estimate(cfg, gpu="t4")
    >>> sorted(estimated.memory_bytes)
    ['activations', 'average', 'gradients', 'optimizer', 'weights', 'workspace']
    >>> estimated.fits
    True
    """
    from voxstill.pipeline import estimate as estimation

    return estimation.estimate(cfg, gpu=gpu, price=price, probe=probe, pretrain=pretrain)


@takes_config
def train_lm(cfg: Config, source: str | Path, output: str | Path, *, order: int = 3) -> LanguageModelResult:
    """Train an n-gram language model for decoding on texts, or on the labels of a work folder.

    `order`, the longest n-gram, is from 1 to 7; the ARPA file is gzipped where its name ends in `.gz`.

    >>> result = voxstill.train_lm(cfg, cfg.work, "words.arpa", order=2)
    >>> len(result.ngrams)
    2
    """
    from voxstill.pipeline import language_model

    return language_model.train_lm(cfg, str(source), str(output), order)


@takes_config
def pretrain(cfg: Config, experiment: str | Path | None = None) -> TrainingSummary:
    """Pre-train a model on audio without labels, for students to start from; an `experiment` continues, as with
    `train`.

    >>> audio_only = voxstill.load_config("my.yaml", "train.name=pretrained", "pretrain.crop_ms=1000")
    >>> voxstill.pretrain(audio_only).steps
    2
    """
    from voxstill.pipeline import pretrain as pretraining

    return pretraining.pretrain(cfg, experiment)


@takes_config
def train(cfg: Config, experiment: str | Path | None = None) -> TrainingSummary:
    """Train a student in an experiment folder; the same call again resumes it, or returns what is finished.

    An `experiment` continues with this configuration: another rate, length, budget or precision.

    >>> summary = voxstill.train(cfg)
    >>> summary.steps, summary.dev_metric
    (2, 'dev_wer')
    """
    from voxstill.pipeline import train as training

    return training.train(cfg, experiment)


def replay(experiment: str | Path, batch: str | Path) -> ReplayResult:
    """Find what was wrong with a step that training skipped: loss and gradient of each of its utterances.

    `batch` is a file in the folder `skipped` of the experiment; DataError if it is none.

    >>> voxstill.replay(experiment, "my.yaml")
    Traceback (most recent call last):
    voxstill.core.errors.DataError: ...
    """
    from voxstill.pipeline import replay as replaying

    return replaying.replay(str(experiment), str(batch))


@takes_config
def run(cfg: Config, *, allow_teacher: str | Sequence[str] = ()) -> RunResult:
    """Run all steps from raw audio to an evaluated student and its report; finished steps are skipped.

    `allow_teacher` names the teachers that `control` may change to while it labels, as in `label`.

    >>> result = voxstill.run(cfg)
    >>> [step.step for step in result.steps]
    ['index', 'label', 'filter', 'shard', 'train', 'evaluate', 'report']
    """
    teachers = strings("allow_teacher", allow_teacher)
    from voxstill.pipeline import end_to_end

    return end_to_end.run(cfg, allow_teacher=teachers)


@takes_config
def dry_run(cfg: Config, max_batches: int | None = None) -> RunResult:
    """Run all steps on a few files, in folders of their own, and estimate what the whole would take.

    >>> result = voxstill.dry_run(cfg, max_batches=2)
    >>> result.rehearsal.files
    12
    """
    from voxstill.pipeline import dry_run as rehearsal

    return rehearsal.dry_run(cfg, max_batches)


def run_demo(work: str | Path = "work/demo", *overrides: str) -> RunResult:
    """Run all steps on a synthetic corpus: no network, no GPU, six minutes with the defaults.

    >>> result = voxstill.run_demo("work/demo", "train.steps=200")  # doctest: +SKIP
    """
    from voxstill.core.command import work_override
    from voxstill.pipeline import end_to_end

    cfg = load_config(None, work_override(str(work)), *end_to_end.DEMO, *overrides)
    return end_to_end.demo(cfg, str(work))
