"""clean: the tables of a work folder that nothing of a configuration uses, and deleting them.

Used are the tables that the configuration makes, in all of its rounds, and what these were made of. Of a kind of which
a configuration has no finished table, all are.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import get_args

from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError, StorageError, TeacherError
from voxstill.core.monitor import log
from voxstill.core.result import Result
from voxstill.indexing.recipe import utterances_recipe
from voxstill.labelling import label
from voxstill.pipeline import mixture, recipes, repair, rounds
from voxstill.sharding import generation
from voxstill.storage import lease, manifest, removals, shard_format, tables, workdir
from voxstill.storage.figures import (
    IndexFigures,
    Kind,
    LabelFigures,
    MixtureFigures,
    ScoreFigures,
    ShardFigures,
    VerdictFigures,
)
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store
from voxstill.storage.uri import is_same_root

Table = tuple[Kind, str]
"""Kind and recipe."""
Files = Mapping[str, int]
"""The bytes of each key."""
_KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult(Result):
    """The tables that nothing uses, as kind/recipe; the bytes of their files; and whether they were deleted.

    `holding_removed` are shards that stay though they hold removed utterances.
    """

    recipes: list[str]
    bytes: int
    deleted: bool
    holding_removed: list[str] = field(default_factory=list)

    def to_text(self) -> str:
        """A line for each table, and the sum."""
        what = "deleted" if self.deleted else "used by nothing; --yes deletes them"
        lines = [*self.recipes, f"{len(self.recipes)} tables, {self.bytes / 1e6:,.1f} MB: {what}"]
        if self.holding_removed:
            lines.append(
                f"{', '.join(self.holding_removed)}: are kept, and have utterances that were removed; with the "
                "configuration that made them run `voxstill filter` and `voxstill shard`, or `voxstill shard "
                "--unlabelled`, then this"
            )
        return "\n".join(lines)


def clean(cfg: Config, *, delete: bool = False) -> CleanResult:
    """Find what nothing uses; with `delete` delete it, each table's `_SUCCESS.json` first.

    An earlier generation of shards stays whole as long as its tars are named, unless it holds removed utterances: then
    only the tars that are named stay. A table that another process writes stays, and one that a link leads to.
    StorageError if another process begins to write one meanwhile, DataError if there is no table at all.
    """
    work = Store(cfg.work)
    if delete:  # what an ended repair has set aside may hold removed utterances
        repair.settle(work)
    files = _tables(work)
    if not files:
        raise DataError(
            f"`{work.root}` has no table", code="no-work-folder", why="it is not a work folder", fix="check the path"
        )
    used = _used(cfg, work, files)
    kept = {key for tar in _named_tars(work, used) for key in (tar, _sidecar(tar))}
    bases = _bases(work, used)
    unused: dict[Table, Files] = {}
    for table in sorted(files.keys() - used):
        if _is_being_written(work, table):
            continue
        rest = {key: num_bytes for key, num_bytes in files[table].items() if key not in kept}
        if (len(rest) < len(files[table]) or table in bases) and not _holds_removed(work, rest):
            continue
        if any(work.is_linked(folder) for folder in {os.path.dirname(key) for key in rest}):
            log.warning(
                "clean: `%s/%s` stays: it is in a link, or one is in it, and nothing is deleted through it", *table
            )
            continue
        unused[table] = rest
    staying = {table: files[table].keys() - unused.get(table, {}).keys() for table in files if table[0] == "shards"}
    if delete:
        for table, of_table in unused.items():
            _delete(work, table, of_table)
    return CleanResult(
        recipes=["/".join(table) for table in unused],
        bytes=sum(sum(of_table.values()) for of_table in unused.values()),
        deleted=delete,
        holding_removed=["/".join(table) for table, keys in sorted(staying.items()) if _holds_removed(work, keys)],
    )


def _tables(work: Store) -> dict[Table, dict[str, int]]:
    """The files of every table, finished or not."""
    files: dict[Table, dict[str, int]] = defaultdict(dict)
    for kind in _KINDS:
        for entry in work.list(kind):
            if entry.key.count("/") >= 2:
                files[kind, entry.key.split("/")[1]][entry.key] = entry.num_bytes
    return files


def _used(cfg: Config, work: Store, there: Iterable[Table]) -> set[Table]:
    """The tables of the configuration, and those that they were made of."""
    todo: list[Table] = []
    for made_recipes in (_recipes_of(one, work) for one in (cfg, *rounds.later(cfg))):
        todo += [
            (kind, recipe)
            for kind, recipe in there
            if made_recipes[kind] is None or recipe in (made_recipes[kind] or ())
        ]
    used: set[Table] = set()
    while todo:
        table = todo.pop()
        if table not in used:
            used.add(table)
            todo.extend(_inputs(work, table))
    return used | {("recordings", recipe) for kind, recipe in used if kind == "utterances"}


def _recipes_of(cfg: Config, work: Store) -> dict[Kind, set[str] | None]:
    """The recipes of each kind that the configuration makes, or reads where it has not made its own; None if that
    is not known."""
    recipes_by_kind: dict[Kind, set[str] | None] = dict.fromkeys(_KINDS)
    recipes_by_kind["alignments"] = set() if cfg.filter.aligner is None else None
    recipes_by_kind["mixtures"] = None if cfg.train.corpora else set()
    recipes_by_kind["recordings"] = set()  # they go with the utterances
    unknown = contextlib.suppress(DataError, ConfigError, TeacherError)
    shards, is_all_removed = set[str](), False
    with unknown:
        source = workdir.finished(work, IndexFigures, utterances_recipe(cfg))
        recipes_by_kind["utterances"] = {source.recipe, utterances_recipe(cfg)}
        shards.add(recipes.unlabelled_recipe(cfg))
        labels = label.finished(work, cfg.teacher)
        second = recipes.second_labels(cfg, labels)
        recipes_by_kind["labels"] = {
            labels.recipe,
            *_wanted_labels(cfg, work),
            *([] if second is None else [second.recipe]),
        }
        if (task := recipes.alignment_task(cfg, labels)) is not None:
            recipes_by_kind["alignments"] = {task.recipe}
    with unknown:
        verdicts = recipes.finished_verdicts(cfg)  # those of the labels so far, while labelling continues
        verdict_recipes, score_recipes = {verdicts.recipe}, {verdicts.scores}
        if verdicts.labelled is None:
            source, labels = recipes.finished_utterances(cfg), label.finished(work, cfg.teacher)
            verdict_recipes.add(recipes.verdicts_recipe(cfg, source, labels))
            score_recipes.add(recipes.scores_recipe(cfg, source, labels))
        recipes_by_kind["verdicts"], recipes_by_kind["scores"] = verdict_recipes, score_recipes
        shards.add(recipes.shard_recipe(cfg, verdicts))
        is_all_removed = bool(verdicts.removed) and not verdicts.judged  # of these no shards are made
    finished = workdir.finished_recipes(work, "shards")
    if is_all_removed or shards.intersection(finished):
        with unknown:  # where it is not clear what `train.corpora` names, all shards are used
            unlabelled = set() if is_all_removed else _unlabelled(work, finished)
            recipes_by_kind["shards"] = shards | mixture.named_shards(cfg) | unlabelled
    with unknown:
        if cfg.train.corpora:
            recipes_by_kind["mixtures"] = {mixture.recipe(cfg)}
    return recipes_by_kind


def _unlabelled(work: Store, finished: Iterable[str]) -> set[str]:
    """The newest generations of shards without labels: a corpus that has grown since continues from them."""
    figures = [workdir.named(work, ShardFigures, recipe) for recipe in finished]
    return {shards.recipe for shards in generation.newest([row for row in figures if row.unlabelled])}


def _wanted_labels(cfg: Config, work: Store) -> set[str]:
    """The recipe of the teacher's labels, which may not be finished; none where it cannot be made any more."""
    with contextlib.suppress(ConfigError, TeacherError):
        return {label.task(cfg.teacher, work).recipe}
    return set()


def _inputs(work: Store, table: Table) -> list[Table]:
    """The tables that a finished one was made of."""
    kind, recipe = table
    if kind == "shards" and (shards := workdir.success(work, ShardFigures, recipe)) is not None:
        return [] if shards.verdicts is None else [("verdicts", shards.verdicts)]
    if kind == "verdicts" and (verdicts := workdir.success(work, VerdictFigures, recipe)) is not None:
        return [("labels", verdicts.labels), ("utterances", verdicts.utterances), ("scores", verdicts.scores)]
    if kind == "scores" and (scores := workdir.success(work, ScoreFigures, recipe)) is not None:
        return [("labels", scores.labels), ("utterances", scores.utterances)]
    if kind == "labels" and (labels := workdir.success(work, LabelFigures, recipe)) is not None:
        of = labels.options.get("of")  # those of a consensus
        return [("labels", str(other)) for other in of] if isinstance(of, list) else []
    if kind == "mixtures" and (mixed := workdir.success(work, MixtureFigures, recipe)) is not None:
        return [
            ("shards", str(corpus["shards"]))
            for corpus in mixed.corpora
            if is_same_root(str(corpus["work"]), work.root)
        ]
    return []


def _named_tars(work: Store, used: Iterable[Table]) -> set[str]:
    """The keys of the tars that the sidecars of used shards name."""
    prefixes = [workdir.prefix(kind, recipe) for kind, recipe in used if kind == "shards"]
    keys = [key for prefix in prefixes for key in tables.parts(work, prefix)]
    parts = tables.columns(work, keys, Sample, ("tar",))
    return {tar for part in parts for tar in part["tar"].unique().to_pylist() if tar and tar.startswith("shards/")}


def _bases(work: Store, used: Iterable[Table]) -> set[Table]:
    """The generations that used shards continue from."""
    prefixes = [workdir.prefix(kind, recipe) for kind, recipe in used if kind == "shards"]
    return {("shards", recipe) for prefix in prefixes if (recipe := generation.base_of(work, prefix)) is not None}


def _sidecar(tar: str) -> str:
    return tar.removesuffix(".tar") + ".parquet"


def _holds_removed(work: Store, files: Iterable[str]) -> bool:
    """Whether sidecars among these files hold a removed utterance."""
    removed = {*removals.of(work), *(removal.id for removal in removals.record(work))}
    if not removed:
        return False
    keys = sorted(key for key in files if key.endswith(".parquet"))
    parts = tables.columns(work, keys, Sample, shard_format.UTTERANCE)
    return any(id_ in removed for part in parts for id_ in shard_format.utterance_ids(part))


def _is_being_written(work: Store, table: Table) -> bool:
    prefix = workdir.prefix(*table)
    try:
        lease.check_free(work, prefix, *lease.below(work, prefix))
    except StorageError:
        return True
    return False


def _delete(work: Store, table: Table, files: Files) -> None:
    """Delete files of a table, which is then not finished; tars before their sidecars, which say what is in them."""
    prefix = workdir.prefix(*table)
    with lease.hold(work, prefix, "clean") as held:
        for name in (tables.SUCCESS, manifest.NAME):
            work.delete(f"{prefix}/{name}")
        log.info("clean: `%s` is deleted", prefix)
        for key in sorted(files, reverse=True):
            held.check()
            work.delete(key)
