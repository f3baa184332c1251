"""The recipes of a configuration: the name of every table that it makes, and the finished tables that a step reads."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from voxstill.core.config import Config, identity
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import Split, Utterance, fingerprint, hash64
from voxstill.filtering import measures, rules, unscored
from voxstill.indexing.recipe import utterances_recipe
from voxstill.labelling import alignment, label
from voxstill.labelling.so_far import begun_task
from voxstill.pipeline import freshness
from voxstill.sharding import generation
from voxstill.storage import join, removals, shard_format, tables, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures, ScoreFigures, ShardFigures, VerdictFigures
from voxstill.storage.store import Store


def finished_utterances(cfg: Config) -> IndexFigures:
    """The utterances of this configuration, or the only ones that are there, with a warning where these are of others.

    DataError as of `workdir.finished`, and where speakers that the configuration holds out are learnt from there.
    """
    work, wanted = Store(cfg.work), utterances_recipe(cfg)
    source = workdir.finished(work, IndexFigures, wanted)
    if source.recipe != wanted:
        freshness.tell_other_index(cfg, source)
    return source


def second_labels(cfg: Config, labels: LabelFigures) -> LabelFigures | None:
    """The figures of the labels that `filter.second_teacher` names; None if it names none.

    They are those of that recipe, or those of the one other teacher that has the name. ConfigError if they are the
    labels to be judged, DataError if there are none, or several.
    """
    name, work = cfg.filter.second_teacher, Store(cfg.work)
    if name is None:
        return None
    if name == labels.recipe:
        raise ConfigError(
            f"`filter.second_teacher` is `{name}`",
            code="second-teacher",
            why="these are the labels to filter: they agree with themselves",
            fix="set another teacher, or the recipe of its labels",
        )
    if (figures := workdir.success(work, LabelFigures, name)) is not None:
        return figures
    recipes = [recipe for recipe in workdir.finished_recipes(work, "labels") if recipe != labels.recipe]
    others = [workdir.named(work, LabelFigures, recipe) for recipe in recipes]
    fitting = [other for other in others if other.teacher.partition("@")[0] == name]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(f"{other.recipe} ({other.teacher})" for other in fitting or others) or "none"
    raise DataError(
        f"`filter.second_teacher` is `{name}`, and {'several' if fitting else 'no'} other labels here are from it",
        code="second-teacher",
        why=f"{'they' if fitting else 'finished'} are: {there}",
        fix="set one of the recipes" if others else "run `voxstill label` with that teacher first",
    )


def alignment_task(cfg: Config, labels: LabelFigures) -> alignment.Task | None:
    """The alignment of these labels by `filter.aligner`; None if there is none."""
    return None if cfg.filter.aligner is None else alignment.task(cfg.filter.aligner, labels.recipe)


def verdicts_recipe(cfg: Config, source: IndexFigures, labels: LabelFigures) -> str:
    """Name of the verdicts of this configuration on these labels."""
    measured = fingerprint(*_measured(cfg, source, labels))
    return workdir.recipe(Store(cfg.work), "verdicts", "filter", cfg.filter, measured, *rules.added_rules())


def scores_recipe(cfg: Config, source: IndexFigures, labels: LabelFigures) -> str:
    """Name of what is measured of these labels."""
    return fingerprint(*_measured(cfg, source, labels), *measures.added_measures())


def first_scores_recipe(cfg: Config, source: IndexFigures, labels: LabelFigures) -> str:
    """Name of the scores of these labels where none of them were measured before."""
    return fingerprint(*_first_measured(cfg, source, labels), *measures.added_measures())


def _measured(cfg: Config, source: IndexFigures, labels: LabelFigures) -> tuple[object, ...]:
    """What the first measures of these labels depend on; verdicts are named after these alone."""
    scores = workdir.success(Store(cfg.work), ScoreFigures, first_scores_recipe(cfg, source, labels))
    more = unscored.identity(Store(cfg.work), source, labels, scores)
    measured = _first_measured(cfg, source, labels)
    return measured if more is None else (*measured, "more", more)


def _first_measured(cfg: Config, source: IndexFigures, labels: LabelFigures) -> tuple[object, ...]:
    """The same where none of these labels were measured before."""
    second, aligned = second_labels(cfg, labels), alignment_task(cfg, labels)
    beside = [] if second is None else ["second", second.recipe, second.sha256]
    beside += [] if aligned is None else ["aligned", aligned.recipe]
    removed = removals.identity(removals.of(Store(cfg.work), workdir.prefix("utterances", source.recipe)))
    beside += [] if removed is None else ["removed", removed]
    phrases = (*measures.PHRASES, *cfg.filter.phrases)
    of = (labels.recipe, labels.sha256, source.recipe)
    return ("scores", measures.VERSION, phrases, cfg.evaluate.normalizer, *of, *beside)


def finished_verdicts(cfg: Config) -> VerdictFigures:
    """The verdicts of this configuration, or the only ones that are there; those of the most labels, where labelling
    has not ended.

    DataError if utterances were removed since they were made. A warning says where they are not of all utterances.
    """
    work = Store(cfg.work)
    source = finished_utterances(cfg)
    partial = _partial_verdicts(cfg, source)
    try:
        labels = label.finished(work, cfg.teacher)
    except DataError:
        if partial is None:
            raise
        verdicts = partial
    else:
        is_newer = partial is not None and partial.labels == labels.recipe and (partial.labelled or 0) > labels.labels
        wanted = partial.recipe if partial is not None and is_newer else verdicts_recipe(cfg, source, labels)
        verdicts = workdir.finished(work, VerdictFigures, wanted)
        if not freshness.tell_unlabelled(work, source, labels):
            freshness.tell_unjudged(work, source, verdicts, wanted)
    removed = removals.of(work, workdir.prefix("utterances", verdicts.utterances))
    if verdicts.removals != removals.identity(removed):
        raise DataError(
            f"the verdicts {verdicts.recipe} in `{work.root}` are older than the last `voxstill remove`",
            code="removed-since",
            why="they may keep utterances that were removed",
            fix=f"run: voxstill filter {work.root}, then: voxstill shard {work.root}",
        )
    return verdicts


def _partial_verdicts(cfg: Config, source: IndexFigures) -> VerdictFigures | None:
    """The verdicts of this configuration on most labels of its teacher while labelling had not ended; None if there
    are none.
    """
    work = Store(cfg.work)
    finished = (workdir.named(work, VerdictFigures, recipe) for recipe in workdir.finished_recipes(work, "verdicts"))
    partial = [verdicts for verdicts in finished if verdicts.labelled is not None]
    if not partial:
        return None
    try:
        labels = LabelFigures(recipe=begun_task(work, cfg.teacher).recipe)
    except DataError:  # they are all of other teachers
        return None
    own = [
        verdicts
        for verdicts in partial
        if verdicts.labels == labels.recipe
        and verdicts.recipe == verdicts_recipe(cfg, source, replace(labels, sha256=str(verdicts.sha256)))
    ]
    return max(own, key=lambda verdicts: (verdicts.labelled or 0, verdicts.recipe), default=None)


def shard_recipe(cfg: Config, verdicts: VerdictFigures) -> str:
    """Name of the shards that this configuration makes of these verdicts."""
    return workdir.recipe(Store(cfg.work), "shards", "shard", cfg.shard, verdicts.recipe, cfg.seed)


def shard_lineage(cfg: Config, verdicts: VerdictFigures | None) -> str:
    """Hash of what decides how a corpus is sharded but for its content; without verdicts, of unlabelled shards."""
    options = identity(cfg.shard), cfg.seed
    if verdicts is None:
        return fingerprint("lineage", *options, utterances_recipe(cfg))
    return fingerprint("lineage", *options, identity(cfg.filter), verdicts.labels, verdicts.utterances)


def finished_shards(cfg: Config) -> ShardFigures:
    """The shards of this configuration, or the only ones that are there; DataError if those have no labels."""
    wanted = shard_recipe(cfg, finished_verdicts(cfg))
    shards = workdir.finished(Store(cfg.work), ShardFigures, wanted)
    if shards.unlabelled:
        raise DataError(
            f"the shards {shards.recipe} in `{cfg.work}` have no labels",
            code="step-unfinished",
            why="they were written for `voxstill pretrain`",
            fix=f"run: voxstill shard {cfg.work}",
        )
    freshness.tell_unsharded(Store(cfg.work), shards, wanted)
    refuse_removed(Store(cfg.work), shards)
    return shards


def refuse_removed(work: Store, shards: ShardFigures) -> None:
    """DataError if shards hold utterances that were removed since they were written."""
    held = removed_in(work, shards)
    if not held:
        return
    unlabelled = " --unlabelled" if shards.unlabelled else ""
    fix = f"run: voxstill shard {work.root}{unlabelled}"
    if held - _known_removed(work, shards).keys():
        before = (
            f"delete the folders `utterances` and `recordings` in `{work.root}`, if they are there, and index again"
        )
        fix = f"{before}; then {'' if shards.unlabelled else f'run: voxstill filter {work.root}, and '}{fix}"
    raise DataError(
        f"the shards {shards.recipe} in `{work.root}` hold {len(held):,} utterances that were removed",
        code="removed-since",
        why="`voxstill remove` was run after they were written",
        fix=fix,
    )


def removed_in(work: Store, shards: ShardFigures) -> set[str]:
    """The ids of the utterances in shards that were removed since they were written.

    The record has the ids, too, where a table is gone, or was made again by a version that did not note in it which
    utterances it left out.
    """
    recorded = {removal.id for removal in removals.record(work)}
    if not recorded:
        return set()
    removed = recorded | _known_removed(work, shards).keys()
    keys = tables.parts(work, workdir.prefix("shards", shards.recipe))
    parts = tables.columns(work, keys, shard_format.Sample, shard_format.UTTERANCE)
    return {id_ for part in parts for id_ in shard_format.utterance_ids(part) if id_ in removed}


def _known_removed(work: Store, shards: ShardFigures) -> Mapping[str, Split]:
    """The removed utterances of the table that shards were made of, or of all where it is not known."""
    verdicts = None if shards.verdicts is None else workdir.success(work, VerdictFigures, shards.verdicts)
    table = removals.UTTERANCES if verdicts is None else workdir.prefix("utterances", verdicts.utterances)
    if not work.exists(f"{table}/{tables.SUCCESS}"):  # an id that was removed in another table may be of other audio
        table = removals.UTTERANCES
    return removals.of(work, table)


def unlabelled_recipe(cfg: Config) -> str:
    """Name of the shards that this configuration makes of all utterances; of a corpus that has grown it is another."""
    work = Store(cfg.work)
    source = finished_utterances(cfg)
    first = _first_unlabelled(cfg, source)
    listing = tables.parts_hash(work, workdir.prefix("utterances", source.recipe))
    begun_with = generation.source_of(work, workdir.prefix("shards", first))
    if begun_with is None:  # not started, or by a version that did not write it down
        done = workdir.success(work, ShardFigures, first)
        num_kept = source.utterances - source.splits.get("test", 0)
        is_same = done is None or done.utterances + sum(done.dropped.values()) == num_kept
    else:
        is_same = begun_with == listing
    if is_same:
        return first
    grown = fingerprint(first, listing)
    if generation.source_of(work, workdir.prefix("shards", grown)) is None and (content := unlabelled_content(cfg)):
        for recipe in (first, *workdir.finished_recipes(work, "shards")):
            if generation.content_of(work, workdir.prefix("shards", recipe)) == content:
                return recipe  # the table was made again since: without the rows of removed utterances
    return grown


def _first_unlabelled(cfg: Config, source: IndexFigures) -> str:
    """The name of the first shards of all utterances, before the corpus has grown."""
    work = Store(cfg.work)
    removed = removals.identity(removals.of(work, workdir.prefix("utterances", source.recipe)))
    added = () if removed is None else ("removed", removed)
    return workdir.recipe(work, "shards", "unlabelled", cfg.shard, source.recipe, cfg.seed, *added)


def unlabelled_content(cfg: Config) -> str | None:
    """A hash of what shards of all utterances hold, where removed ones are left out; None where there are none.

    A table that is made again has no rows of these: its listing is another, and what is in the shards is not.
    """
    work, source = Store(cfg.work), finished_utterances(cfg)
    prefix = workdir.prefix("utterances", source.recipe)
    removed = removals.identity(removals.of(work, prefix))
    if removed is None:
        return None
    ids = _hash_of_unlabelled(work.root, prefix, removed, tables.parts_hash(work, prefix))
    return fingerprint(_first_unlabelled(cfg, source), ids)


@functools.lru_cache(maxsize=16)
def _hash_of_unlabelled(root: str, prefix: str, *_: str) -> str:
    """A hash of the utterances that shards without labels hold, once for each state of the table and of the record."""
    work = Store(root)
    removed, num, total = removals.of(work, prefix), 0, 0
    for part in tables.columns(work, tables.parts(work, prefix), Utterance, ("id", "split")):
        for id_, split in zip(part["id"].to_pylist(), part["split"].to_pylist(), strict=True):
            if id_ not in removed and split != "test":
                num, total = num + 1, total + hash64(f"{split} {id_}")  # a sum, as parts come in any order
    return fingerprint(num, total)


def label_parts(cfg: Config, work: Store, utterances: str, labels: str) -> list[join.Part]:
    """The parts of two tables that belong together."""
    return join.parts(
        work,
        utterances=workdir.prefix("utterances", utterances),
        labels=workdir.prefix("labels", labels),
        cfg=cfg.engine,
    )
