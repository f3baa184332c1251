"""Make again what is broken in a WORK, and no more: by the steps that made it, in their order.

What is broken is set aside together with the `_SUCCESS.json` of its table, and the step goes on from there as after a
kill. Where the step fails, all of it comes back. Only a configuration that makes the table can make it again: without
it nothing is removed.
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
from voxstill.storage import lease, manifest, removals, same_audio, set_aside, tables, workdir
from voxstill.storage.figures import IndexFigures, Kind, LabelFigures, ShardFigures, VerdictFigures
from voxstill.storage.store import Store

_DERIVED: tuple[Kind, ...] = ("scores", "verdicts", "shards")
"""Tables whose parts are cut as those that they are made of: where ids were doubled, all of it is made again."""
_PARTS = (".parquet", ".tar")
_ORDER: tuple[Kind, ...] = ("utterances", "labels", "alignments", *_DERIVED, "mixtures")


@marks_children("verify")
def repair(cfg: Config, findings: Sequence[Finding]) -> list[str]:
    """Make again what the configuration makes of the broken tables; names the others in the log.

    Returns the keys of all parts that were made again. What a step raises is raised: its table is then as it was, but
    for parts that were made again before.
    """
    before = {kind: _recipes(cfg, kind) for kind in _ORDER}  # labels that differ afterwards give other names

    def order(finding: Finding) -> tuple[int, bool, str]:  # an earlier generation of shards before the newest
        return _ORDER.index(finding.kind), finding.recipe in before[finding.kind], finding.recipe

    ordered, written = sorted(findings, key=order), list[str]()
    for table, rows in groupby(ordered, key=attrgetter("table")):
        of_table = list(rows)
        kind, recipe = of_table[0].kind, of_table[0].recipe
        is_made = recipe in _recipes(cfg, kind)
        is_known = is_made or recipe in before[kind]
        if not is_known:
            removals.check(Store(cfg.work))  # while the record is broken, it is not known what is older than it
        if kind == "mixtures" or (not is_known and _is_earlier_generation(cfg, kind, recipe)):
            _make_unfinished(cfg, kind, recipe)
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
        is_baseless = not is_unknown and kind == "shards" and not generation.has_its_base(Store(cfg.work), table)
        is_all = is_doubled or is_unknown or is_baseless or not is_made
        removed = _files(Store(cfg.work), table) if is_all else _broken_files(kind, recipe, of_table)
        _make_again(cfg, kind, recipe, removed, is_all=is_all)
        again = _files(Store(cfg.work), table) if is_all else removed
        written += [key for key in again if key.endswith(_PARTS) and Store(cfg.work).exists(key)]
    return written


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


def _make_unfinished(cfg: Config, kind: Kind, recipe: str) -> None:
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


def settle(work: Store) -> None:
    """Go on where a repair was ended: what it set aside and did not make again comes back."""
    for table in set_aside.tables_kept(work):
        with lease.hold(work, table, "verify --repair"):
            lease.check_free(work, *lease.below(work, table))
            for key in set_aside.settle(work, table):
                log.warning("verify: `%s` is back as it was", key)


def _make_again(cfg: Config, kind: Kind, recipe: str, removed: Sequence[str], *, is_all: bool) -> None:
    """Set files of a table aside, which is then not finished any more, and run its step."""
    work, table = Store(cfg.work), workdir.prefix(kind, recipe)
    unlabelled = _unlabelled(cfg) if kind == "shards" else None
    labels = _figures(work, LabelFigures, recipe) if kind == "labels" else None
    source = _figures(work, IndexFigures, recipe) if kind == "utterances" else None
    with lease.hold(work, table, "verify --repair") as held:
        lease.check_free(work, *lease.below(work, table))
        above = _recipes(cfg, "scores") if kind == "alignments" else ()  # they are made on the way to the scores
        unfinished = [*(workdir.prefix("scores", scores) for scores in above), table]
        keys = [*(f"{prefix}/{tables.SUCCESS}" for prefix in unfinished), *removed]
        for key in set_aside.keep(work, keys, table if is_all else None):
            held.check()
            work.delete(key)
    for key in removed:
        log.warning("verify: `%s` is set aside, to be made again", key)
    steps: dict[Kind, Callable[[Config], object]] = {
        "utterances": index,
        "labels": label_utterances,
        "alignments": measured_labels,
        "scores": measured_labels,
        "verdicts": filter_labels,
        "shards": shard_unlabelled if recipe == unlabelled else shard,
    }
    try:
        steps[kind](cfg)
    except BaseException:
        with contextlib.suppress(VoxstillError):  # storage that is gone, or another process: the next repair does it
            settle(work)
        log.error(
            "verify: `%s` is not made again, as its step did not end, and nothing of it is lost. Run `voxstill verify "
            "--repair` once the cause is gone: that step alone would take the table for finished",
            table,
        )
        raise
    for prefix in unfinished:  # what the step made takes its place, maybe under another name
        set_aside.drop(work, prefix)
    _warn_of_others(work, labels)
    _warn_of_fewer(work, source)


def _warn_of_others(work: Store, before: LabelFigures | None) -> None:
    now = None if before is None else _figures(work, LabelFigures, before.recipe)
    if before is not None and now is not None and before.sha256 != now.sha256:
        log.warning(
            "verify: `%s` has other labels than before: run `voxstill filter` and `voxstill shard` again",
            workdir.prefix("labels", before.recipe),
        )


def _warn_of_fewer(work: Store, before: IndexFigures | None) -> None:
    """Of a folder or a bucket, a file that is not there is not asked for."""
    now = None if before is None else _figures(work, IndexFigures, before.recipe)
    if before is None or now is None:
        return
    num_before, num = (figures.utterances + (figures.removed or 0) for figures in (before, now))
    if num_before > num:
        log.error(
            "verify: `%s` holds %d utterances, and held %d: their files are not there; once these are back, `voxstill "
            "index` takes them in",
            *(workdir.prefix("utterances", before.recipe), now.utterances, now.utterances + num_before - num),
        )


def _unlabelled(cfg: Config) -> str | None:
    with contextlib.suppress(VoxstillError):
        return recipes.unlabelled_recipe(cfg)
    return None


def _figures(work: Store, figures_type: type[workdir.Figures], recipe: str) -> workdir.Figures | None:
    """The figures of a table, None if they cannot be read."""
    with contextlib.suppress(VoxstillError):
        return workdir.success(work, figures_type, recipe)
    return None


def _files(work: Store, table: str) -> list[str]:
    """The keys of all that a table is."""
    keys = sorted(entry.key for entry in work.list(table) if entry.key.endswith(_PARTS))
    return [f"{table}/{manifest.NAME}", f"{table}/{generation.BASE}", *keys]


def _broken_files(kind: Kind, recipe: str, findings: Sequence[Finding]) -> list[str]:
    """The keys of what is broken, and of what was written together with it."""
    table = workdir.prefix(kind, recipe)
    broken = (finding.path for finding in findings if finding.path.endswith(_PARTS))
    stems = sorted({path.rpartition("/")[2].rpartition(".")[0] for path in broken})
    if kind == "utterances":
        return [f"{prefix}/{stem}.parquet" for stem in stems for prefix in (f"recordings/{recipe}", table)]
    endings = _PARTS if kind == "shards" else (".parquet",)
    notes = [finding.path for finding in findings if finding.path.endswith(f"/{same_audio.NAME}")]
    return [*notes, *(f"{table}/{stem}{ending}" for stem in stems for ending in endings)]
