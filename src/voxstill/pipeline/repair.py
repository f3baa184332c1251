"""Make again what is broken in a WORK, and no more: by the steps that made it, in their order.

What is broken is removed together with the `_SUCCESS.json` of its table, and the step continues from there as after a
kill. Only a configuration that makes the table can make it again: without it nothing is removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

from voxstill.core.config import Config, sources_of
from voxstill.core.errors import VoxstillError
from voxstill.core.monitor import log
from voxstill.indexing.recipe import utterances_recipe
from voxstill.labelling import label
from voxstill.pipeline import recipes
from voxstill.pipeline.check_table import Finding
from voxstill.pipeline.filter import filter_labels, measured_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.marks import marks_children
from voxstill.pipeline.shard import shard, shard_unlabelled
from voxstill.sharding import generation
from voxstill.storage import lease, manifest, same_audio, tables, workdir
from voxstill.storage.figures import IndexFigures, Kind, LabelFigures, ShardFigures, VerdictFigures
from voxstill.storage.store import Store

_DERIVED: tuple[Kind, ...] = ("scores", "verdicts", "shards")
"""Tables whose parts are cut as those that they are made of: where ids were doubled, all of it is made again."""
_ORDER: tuple[Kind, ...] = ("utterances", "labels", "alignments", *_DERIVED, "mixtures")


@marks_children("verify")
def repair(cfg: Config, findings: Sequence[Finding]) -> None:
    """Make again what the configuration makes of the broken tables; names the others in the log.

    What a step raises is raised: what it had to make again is then missing, and is named so by the next check.
    """
    before = {kind: _recipes(cfg, kind) for kind in _ORDER}  # labels that differ afterwards give other names

    def order(finding: Finding) -> tuple[int, bool, str]:  # an earlier generation of shards before the newest
        return _ORDER.index(finding.kind), finding.recipe in before[finding.kind], finding.recipe

    ordered = sorted(findings, key=order)
    for table, rows in groupby(ordered, key=attrgetter("table")):
        of_table = list(rows)
        kind, recipe = of_table[0].kind, of_table[0].recipe
        is_made = recipe in _recipes(cfg, kind)
        is_known = is_made or recipe in before[kind]
        if kind == "mixtures" or (not is_known and _is_earlier_generation(cfg, kind, recipe)):
            _set_aside(cfg, kind, recipe)
            continue
        if not is_known:
            log.error(
                "`%s` is not repaired, as this configuration now makes other %s: give the configuration that made it "
                "with --config. If it is this one, the corpus has grown or utterances were removed since: "
                "then remove the folder and run the step again",
                table,
                kind,
            )
            continue
        is_doubled = kind in _DERIVED and any(finding.is_doubled for finding in of_table)
        is_unknown = any(finding.path.endswith(f"/{generation.BASE}") for finding in of_table)
        is_grown = is_unknown or (kind == "shards" and generation.is_grown(Store(cfg.work), table))
        is_all = is_doubled or is_grown or not is_made
        removed = _files(Store(cfg.work), table) if is_all else _broken_files(kind, recipe, of_table)
        _make_again(cfg, kind, recipe, removed)


def _recipes(cfg: Config, kind: Kind) -> set[str]:
    """The names of the tables of a kind that the configuration makes, as far as what they are made of is finished."""
    work, names = Store(cfg.work), set[str]()
    with contextlib.suppress(VoxstillError):
        if kind == "utterances":
            return {utterances_recipe(cfg)} if any(source.uri for source in sources_of(cfg.source)) else set()
        if kind == "shards":
            names.add(recipes.unlabelled_recipe(cfg))
        labels_recipe = label.task(cfg.teacher, work).recipe
        if kind == "labels":
            return {labels_recipe}
        source = workdir.finished(work, IndexFigures, utterances_recipe(cfg))
        labels = workdir.finished(work, LabelFigures, labels_recipe)
        if kind == "alignments" and (task := recipes.alignment_task(cfg, labels)) is not None:
            names.add(task.recipe)
        if kind == "scores":
            names = {recipes.first_scores_recipe(cfg, source, labels)}  # stays where its figures cannot be read
            names = {recipes.scores_recipe(cfg, source, labels)}
        if kind == "verdicts":
            names.add(recipes.verdicts_recipe(cfg, source, labels))
        if kind == "shards":
            names.add(recipes.shard_recipe(cfg, recipes.finished_verdicts(cfg)))
    return names


def _is_earlier_generation(cfg: Config, kind: Kind, recipe: str) -> bool:
    """Whether shards are of those that the configuration makes, but of fewer labels, or older than a removal."""
    with contextlib.suppress(VoxstillError):
        figures = workdir.success(Store(cfg.work), ShardFigures, recipe) if kind == "shards" else None
        if figures is not None and figures.lineage is not None:
            own = None if figures.verdicts is None else workdir.named(Store(cfg.work), VerdictFigures, figures.verdicts)
            return figures.lineage == recipes.shard_lineage(cfg, own)
    return False


def _set_aside(cfg: Config, kind: Kind, recipe: str) -> None:
    """Make a table unfinished: no new generation continues from it, and the next training writes a mixture again."""
    work, table = Store(cfg.work), workdir.prefix(kind, recipe)
    if kind == "shards":
        log.warning(
            "verify: `%s` is not made again, but marked as unfinished: it is older than the last labels or the last "
            "`voxstill remove`. `voxstill filter` and `voxstill shard` write the current shards",
            table,
        )
    with lease.hold(work, table, "verify --repair"):
        work.delete(f"{table}/{tables.SUCCESS}")
        for key in _files(work, table) if kind == "mixtures" else [f"{table}/{manifest.NAME}"]:
            work.delete(key)


def _make_again(cfg: Config, kind: Kind, recipe: str, removed: Sequence[str]) -> None:
    """Remove files of a table, which is then not finished any more, and run its step."""
    work, table = Store(cfg.work), workdir.prefix(kind, recipe)
    unlabelled = _unlabelled(cfg) if kind == "shards" else None
    labels = _labels(work, recipe) if kind == "labels" else None
    with lease.hold(work, table, "verify --repair") as held:
        lease.check_free(work, *lease.below(work, table))
        if kind == "alignments":  # they are made on the way to the scores
            for scores in _recipes(cfg, "scores"):
                work.delete(f"{workdir.prefix('scores', scores)}/{tables.SUCCESS}")
        work.delete(f"{table}/{tables.SUCCESS}")
        for key in removed:
            held.check()
            log.warning("verify: `%s` is removed, to be made again", key)
            work.delete(key)
    steps: dict[Kind, Callable[[Config], object]] = {
        "utterances": index,
        "labels": label_utterances,
        "alignments": measured_labels,
        "scores": measured_labels,
        "verdicts": filter_labels,
        "shards": shard_unlabelled if recipe == unlabelled else shard,
    }
    steps[kind](cfg)
    now = _labels(work, recipe)
    if labels is not None and now is not None and labels.sha256 != now.sha256:
        log.warning(
            "verify: `%s` has other labels than before: run `voxstill filter` and `voxstill shard` again", table
        )


def _unlabelled(cfg: Config) -> str | None:
    with contextlib.suppress(VoxstillError):
        return recipes.unlabelled_recipe(cfg)
    return None


def _labels(work: Store, recipe: str) -> LabelFigures | None:
    """The figures of a table of labels, None if they cannot be read."""
    with contextlib.suppress(VoxstillError):
        return workdir.success(work, LabelFigures, recipe)
    return None


def _files(work: Store, table: str) -> list[str]:
    """The keys of all that a table is."""
    keys = sorted(entry.key for entry in work.list(table) if entry.key.endswith((".parquet", ".tar")))
    return [f"{table}/{manifest.NAME}", f"{table}/{generation.BASE}", *keys]


def _broken_files(kind: Kind, recipe: str, findings: Sequence[Finding]) -> list[str]:
    """The keys of what is broken, and of what was written together with it."""
    table = workdir.prefix(kind, recipe)
    broken = (finding.path for finding in findings if finding.path.endswith((".parquet", ".tar")))
    stems = sorted({path.rpartition("/")[2].rpartition(".")[0] for path in broken})
    if kind == "utterances":
        return [f"{prefix}/{stem}.parquet" for stem in stems for prefix in (f"recordings/{recipe}", table)]
    endings = (".parquet", ".tar") if kind == "shards" else (".parquet",)
    notes = [finding.path for finding in findings if finding.path.endswith(f"/{same_audio.NAME}")]
    return [*notes, *(f"{table}/{stem}{ending}" for stem in stems for ending in endings)]
