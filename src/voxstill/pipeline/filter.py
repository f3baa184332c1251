"""filter: measure every label once, then keep it or drop it by the rules (hallucination, compression, ...)."""

from __future__ import annotations

import dataclasses

from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import log
from voxstill.filtering.rules import Tie, current_name
from voxstill.filtering.verdicts import write_verdicts
from voxstill.labelling import label, label_figures
from voxstill.labelling.so_far import Labels, labels_so_far, num_labelled
from voxstill.pipeline import freshness, nothing_kept
from voxstill.pipeline.marks import marks_children
from voxstill.pipeline.measure_labels import check_audio, refuse_added, removed_utterances, scores
from voxstill.pipeline.recipes import finished_utterances, verdicts_recipe
from voxstill.storage import parts, removals, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures, ScoreFigures, VerdictFigures
from voxstill.storage.store import Store


@marks_children("filter")
def filter_labels(cfg: Config, *, part: str | None = None, partial: bool = False) -> VerdictFigures:
    """Every label has its scores, and those of the training and dev splits a verdict with its reason.

    With `part`, K/N or `auto`, only the labels of that part are measured; the part that finds all scores there judges.
    With `partial` the labels that are there are judged, though labelling has not ended; their verdicts are another
    table than those of all labels. What was removed has neither scores nor verdict. ConfigError if `part` is none,
    or is given with `partial`.
    """
    own = parts.requested(part)
    if own is not None and partial:
        raise ConfigError(
            "labels made so far cannot be filtered in parts",
            code="option-conflict",
            why="labelling may continue meanwhile, and each part would read different labels",
            fix="leave out `--part` or `--partial`",
        )
    work = Store(cfg.work)
    source = finished_utterances(cfg)
    read = labels_so_far(work, cfg.teacher) if partial else Labels(label.finished(work, cfg.teacher))
    check_audio(cfg, source, read.figures)
    refuse_added(work, read)
    labels = read.figures
    if read.keys is None:
        freshness.tell_unlabelled(work, source, labels)
    else:
        num = num_labelled(work, workdir.prefix("utterances", source.recipe), read.keys)
        log.info("filter: %d of %d utterances have labels", num, source.utterances)
    recipe = verdicts_recipe(cfg, source, labels)
    done = workdir.success(work, VerdictFigures, recipe)
    if done is not None:
        log.info("filter: nothing to do, verdicts %s exist", recipe)
        if done.labelled is not None and labels.finished:  # labelling has ended since, and these were all
            done = dataclasses.replace(done, labelled=None, sha256=None)
            with parts.hold(work, workdir.prefix("verdicts", recipe), "filter", None, cfg.engine):
                workdir.finish(work, done)
        nothing_kept.warn(work, done)
        return dataclasses.replace(done, reasons={current_name(name): num for name, num in done.reasons.items()})
    with parts.hold(work, workdir.prefix("verdicts", recipe), "filter", own, cfg.engine) as held:
        measured = scores(cfg, source, read, own)
        if measured.finished is False:
            return _unjudged(recipe, source, labels, measured)
        figures = _judge(cfg, recipe, source, labels, measured)
        held.check()
        if verdicts_recipe(cfg, source, labels) != recipe:
            raise DataError(
                "utterances were removed while the filter ran",
                code="removed-since",
                why="`voxstill remove` was run meanwhile, and the verdicts may keep them",
                fix=f"run again: voxstill filter {work.root}",
            )
        workdir.finish(work, figures)
    nothing_kept.warn(work, figures)
    return figures


def _unjudged(recipe: str, source: IndexFigures, labels: LabelFigures, measured: ScoreFigures) -> VerdictFigures:
    return VerdictFigures(
        recipe=recipe,
        labels=labels.recipe,
        utterances=source.recipe,
        scores=measured.recipe,
        teacher=labels.teacher,
        labelled=None if labels.finished else labels.labels,
        sha256=None if labels.finished else labels.sha256,
        finished=False,
    )


def _judge(
    cfg: Config, recipe: str, source: IndexFigures, labels: LabelFigures, measured: ScoreFigures
) -> VerdictFigures:
    work = Store(cfg.work)
    measures, verdicts = workdir.prefix("scores", measured.recipe), workdir.prefix("verdicts", recipe)
    counts = write_verdicts(work, measures, verdicts, recipe, cfg.filter)
    if counts.tie is not None:
        _warn_of_tie(counts.tie, cfg.filter.keep_share)
    removed = removed_utterances(work, source)
    are_human = label_figures.are_human_texts(labels)  # labels have no errors against themselves
    return dataclasses.replace(
        _unjudged(recipe, source, labels, measured),
        finished=None,
        judged=counts.judged,
        kept_utterances=counts.kept,
        kept=counts.share,
        kept_hours=counts.kept_ms / 3_600_000,
        reasons=counts.reasons,
        removed=len(removed) or None,
        removals=removals.identity(removed),
        wer_before=None if are_human else counts.wer,
        wer_after=None if are_human else counts.kept_wer,
    )


def _warn_of_tie(tie: Tie, keep_share: float) -> None:
    way_out = "all are equally sure, so no threshold keeps fewer of them"
    if tie.next_confidence is not None:
        way_out = f"`filter.min_confidence={tie.next_confidence}` would keep {100 * tie.next_kept:.1f} %"
    log.warning(
        "filter: `filter.keep_share=%g` keeps %.1f %% of the labels with a confidence: %d of them have the confidence "
        "%.3g, and equals are kept together; %s",
        keep_share,
        100 * tie.kept,
        tie.num,
        tie.confidence,
        way_out,
    )


def measured_labels(cfg: Config) -> tuple[LabelFigures, ScoreFigures]:
    """The figures of the finished labels, and of their scores."""
    work = Store(cfg.work)
    source = finished_utterances(cfg)
    labels = Labels(label.finished(work, cfg.teacher))
    check_audio(cfg, source, labels.figures)
    refuse_added(work, labels)
    return labels.figures, scores(cfg, source, labels)
