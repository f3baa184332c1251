"""evaluate: inference of a finished model on one split of its WORK, and its error rates beside those of its teacher."""

from __future__ import annotations

from collections.abc import Sequence

from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import Utterance
from voxstill.decoding import exported
from voxstill.evaluation import recognition, results
from voxstill.evaluation import teacher as teacher_evaluation
from voxstill.evaluation.results import Evaluation
from voxstill.nn import loading
from voxstill.pipeline import details, tuned_weights
from voxstill.pipeline.checkpoint_model import model_of
from voxstill.pipeline.export_origin import experiment_of
from voxstill.pipeline.judged_split import JudgedSplit, of_split
from voxstill.pipeline.marks import marks_children
from voxstill.storage.rundir import RunDir
from voxstill.storage.uri import is_local, local_path
from voxstill.tasks import registry


@marks_children("evaluate")
def evaluate(cfg: Config, target: str, by: Sequence[str] = (), show: int = 0) -> Evaluation:
    """Judge a model by the task that it is of; the figures of an experiment are kept in its folder.

    A recogniser's errors are broken down by further fields of the utterances or of their manifest too, and the text has
    the alignments of so many of the worst utterances. ConfigError for a field that nothing has.

    It may be a checkpoint of an experiment, also of one that is still training: `EXP/checkpoints/best`. Beside the
    result of a recogniser stays that of its teacher's labels, where they are there.
    """
    if cfg.decode.tune:
        tuned_weights.check(cfg)
        _check_language_model(cfg)
    run = experiment_of(target)
    _check_paths(cfg, run)
    weights = loading.version(run.model)  # before they are judged: a training that continues replaces them
    with model_of(target) as (model, checkpoint):
        name = registry.name_of(model)
        if cfg.decode.tune and name != "recognition":
            raise ConfigError(
                "`decode.tune` has no effect",
                code="option-unused",
                why=f"`{target}` does not output text: its task is `{name}`",
                fix="leave it out",
            )
        split = of_split(cfg)
        fields = details.fields_of(cfg, split.utterances, by)
        if cfg.decode.tune:
            evaluation = _tuned(cfg, model, split.utterances)
        elif exported.locate(model) is not None:
            evaluation = recognition.evaluation(cfg, model, split.utterances)
        else:
            evaluation = registry.task_of(model).evaluate(cfg, model, split.utterances)
    evaluation = evaluation.of(
        split.corpus,
        checkpoint or results.STUDENT,
        split.warnings,
        model=target,
        weights=weights if checkpoint is None else None,
    )
    if run.config.is_file():
        results.write(run.evaluation, evaluation)
        if name == "recognition" and (teacher := _teacher(cfg, split)) is not None:
            results.write(run.evaluation, teacher)
    return details.with_text(evaluation, by, fields, show)


def _check_paths(cfg: Config, run: RunDir) -> None:
    """Raise ConfigError for an experiment whose files are named from another folder than this."""
    if not run.config.is_file():
        return
    for option, path in (("work", cfg.work), ("evaluate.texts", cfg.evaluate.texts)):
        folder = local_path(path).expanduser() if path and is_local(path) else None
        if folder is not None and not folder.is_absolute() and not folder.exists():
            raise ConfigError(
                f"`{option}: {path}` of `{run.path}` does not exist here",
                code="file-missing",
                why="a path of an experiment is from the folder in which its training was started, any other from here",
                fix=f"run the command in that folder, or set another by `--set {option}=PATH`",
            )


def _check_language_model(cfg: Config) -> None:
    """Raise ConfigError if the only language model is the one that `voxstill run` makes."""
    if cfg.decode.lm is None:
        raise ConfigError(
            "`decode.tune` has nothing to tune",
            code="option-unused",
            why="`decode.lm` is not set, and `evaluate.lm_order` makes a language model only in `voxstill run`",
            fix="set `decode.beam`, and `decode.lm` to the `labels.arpa` of the experiment, or leave `decode.tune` out",
        )


def _tuned(cfg: Config, model: str, utterances: Sequence[Utterance]) -> Evaluation:
    """The evaluation of a recogniser with weights that are tuned before."""
    figures = tuned_weights.evaluate(cfg, model, recognition.references(cfg, utterances))
    return recognition.evaluation_of(figures.to_dict(), figures.judged, figures.hypotheses)


def _teacher(cfg: Config, split: JudgedSplit) -> Evaluation | None:
    """The evaluation of the teacher's labels of the same utterances; None if there are none."""
    try:
        judged = recognition.references(cfg, split.utterances)
    except DataError:
        return None
    figures = teacher_evaluation.evaluate_labels(cfg, judged)
    if figures is None:
        return None
    evaluation = recognition.evaluation_of(figures.to_dict(), judged, figures.hypotheses)
    return evaluation.of(split.corpus, figures.teacher, split.warnings)


def own_config(model: str) -> str | None:
    """The configuration of an experiment, or of the one that a checkpoint lies in; None of any other model."""
    file = experiment_of(model).config
    return str(file) if file.is_file() else None
