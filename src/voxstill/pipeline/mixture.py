"""The shards that a training reads: those of its work folder, or the mixture of `train.corpora`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from voxstill.core.config import Config, TrainingCorpus
from voxstill.core.errors import DataError
from voxstill.core.monitor import log
from voxstill.core.records import fingerprint
from voxstill.indexing.recipe import utterances_recipe
from voxstill.pipeline import left_out, recipes
from voxstill.pipeline.shard import audio_shards
from voxstill.sharding import generation, mixture, references
from voxstill.storage import removals, tables, workdir
from voxstill.storage.figures import IndexFigures, MixtureFigures, ShardFigures, VerdictFigures
from voxstill.storage.removals import Removal
from voxstill.storage.store import Store
from voxstill.storage.uri import is_same_root


def labelled_shards(cfg: Config) -> ShardFigures:
    """The shards with labels to learn from; DataError if there are none, or a corpus has none."""
    return _mixed(cfg, with_labels=True) if cfg.train.corpora else recipes.finished_shards(cfg)


def shards_to_listen_to(cfg: Config) -> ShardFigures:
    """The shards of which the audio alone is learnt, with labels or without."""
    return _mixed(cfg, with_labels=False) if cfg.train.corpora else audio_shards(cfg)


def _mixed(cfg: Config, *, with_labels: bool) -> MixtureFigures:
    """The mixture of `train.corpora`: written where it is not there, which copies no audio."""
    work = Store(cfg.work)
    corpora = [_corpus(cfg, entry, with_labels=with_labels) for entry in cfg.train.corpora]
    indexed = [list(_indexed(corpus)) for corpus in corpora]
    tests, removed = _tests(cfg, corpora), _removed(cfg, corpora)
    recipe = _recipe(corpora, tests, removed)
    done = workdir.success(work, MixtureFigures, recipe)
    if done is not None:
        return done
    prefix = workdir.prefix("mixtures", recipe)
    mixed = mixture.write(work, prefix, corpora, left_out.left_out(corpora, indexed, tests, removed))
    figures = MixtureFigures(
        recipe=recipe,
        teacher=" + ".join(dict.fromkeys(corpus.figures.teacher or "no teacher" for corpus in corpora)),
        unlabelled=None if with_labels else True,
        shards=len(mixed.shards),
        utterances=sum(shard.utterances for shard in mixed.shards),
        hours=sum(shard.duration_ms for shard in mixed.shards) / 3_600_000,
        num_bytes=sum(shard.num_bytes for shard in mixed.shards),
        dropped={reason: num for reason, num in mixed.dropped.items() if num},
        corpora=[
            {"work": corpus.store.root, "shards": corpus.figures.recipe, "dataset": corpus.dataset}
            for corpus in corpora
        ],
    )
    dropped = ", ".join(f"{num:,} {reason}" for reason, num in figures.dropped.items()) or "none"
    log.info(
        "train: %d corpora mixed: %s utterances, %.2f h; left out: %s",
        len(corpora),
        f"{figures.utterances:,}",
        figures.hours,
        dropped,
    )
    workdir.finish(work, figures)
    return figures


def recipe(cfg: Config) -> str:
    """Name of the mixture of this configuration; DataError if a corpus has no shards to mix."""
    corpora = [_corpus(cfg, entry, with_labels=False) for entry in cfg.train.corpora]
    return _recipe(corpora, _tests(cfg, corpora), _removed(cfg, corpora))


def _recipe(corpora: Sequence[references.ShardSet], tests: Sequence[left_out.Table], removed: Sequence[Removal]) -> str:
    sources = [(corpus.store.root, corpus.figures.to_dict(), corpus.dataset) for corpus in corpora]
    prefixes = [(root, workdir.prefix("utterances", of)) for root, of in tests]
    held_out = [(root, prefix, tables.parts_hash(Store(root), prefix)) for root, prefix in prefixes]
    without = [removals.identity(removal.id for removal in removed)] if removed else []
    return fingerprint("mixture", sources, held_out, *without)


def _removed(cfg: Config, corpora: Sequence[references.ShardSet]) -> list[Removal]:
    """What was removed from any of the work folders: people who asked for it are in none of the corpora."""
    stores = {store.root: store for store in (Store(cfg.work), *(corpus.store for corpus in corpora))}
    return [removal for store in stores.values() for removal in removals.record(store)]


def _tests(cfg: Config, corpora: Sequence[references.ShardSet]) -> list[left_out.Table]:
    """The tables of utterances whose test split no corpus may hold."""
    return list(dict.fromkeys([*_own_test(cfg), *(table for corpus in corpora for table in _indexed(corpus))]))


def _corpus(cfg: Config, entry: TrainingCorpus, *, with_labels: bool) -> references.ShardSet:
    """The finished shards of an entry of `train.corpora`."""
    work = Store(entry.work)
    figures = _shards_of(cfg, entry, work)
    if with_labels and figures.unlabelled:
        raise DataError(
            f"the shards {figures.recipe} in `{entry.work}` have no labels",
            code="step-unfinished",
            why="they were written for `voxstill pretrain`",
            fix=f"run: voxstill shard {entry.work}",
        )
    recipes.refuse_removed(work, figures)
    return references.ShardSet(work, workdir.prefix("shards", figures.recipe), figures, entry.dataset)


def named_shards(cfg: Config) -> set[str]:
    """The recipes of the shards of this work folder that `train.corpora` names; DataError if one is not clear."""
    own = Store(cfg.work)
    entries = [entry for entry in cfg.train.corpora if is_same_root(entry.work, own.root)]
    return {_shards_of(cfg, entry, own).recipe for entry in entries}


def _shards_of(cfg: Config, entry: TrainingCorpus, work: Store) -> ShardFigures:
    """Those that the entry names by their recipe or their teacher; else those of this configuration, or the only ones
    of another work folder. Of several generations it is the newest."""
    if entry.shards is None and is_same_root(work.root, cfg.work):
        return recipes.finished_shards(cfg)
    finished = [workdir.named(work, ShardFigures, recipe) for recipe in workdir.finished_recipes(work, "shards")]
    if entry.shards is None:
        fitting = [figures for figures in finished if not figures.unlabelled] or finished
    else:
        fitting = [
            figures
            for figures in finished
            if entry.shards in (figures.recipe, figures.teacher, (figures.teacher or "").partition("@")[0])
        ]
    newest = generation.newest(fitting)
    if len(newest) == 1:
        return newest[0]
    there = ", ".join(f"{figures.recipe} ({figures.teacher or 'no labels'})" for figures in newest or finished)
    named = "" if entry.shards is None else f" `{entry.shards}`"
    raise DataError(
        f"`train.corpora` needs shards{named} of `{entry.work}`, which has "
        + ("such shards of several recipes" if newest else "none of them finished"),
        code="several-recipes" if newest else "step-unfinished",
        why=f"finished are: {there}" if there else "no shards are finished there",
        fix="set `shards` of that corpus to one of these recipes" if there else f"run: voxstill shard {entry.work}",
    )


def _own_test(cfg: Config) -> Iterator[left_out.Table]:
    """The utterances that students of this configuration are judged on, where they are indexed."""
    try:
        workdir.finished(Store(cfg.work), IndexFigures, utterances_recipe(cfg))
    except DataError:
        return
    indexed = recipes.finished_utterances(cfg)
    yield Store(cfg.work).root, indexed.recipe


def _indexed(corpus: references.ShardSet) -> Iterator[left_out.Table]:
    """The utterances that the shards of a corpus were made of, where they are still known."""
    recipe = corpus.figures.verdicts
    verdicts = None if recipe is None else workdir.success(corpus.store, VerdictFigures, recipe)
    if verdicts is not None:
        yield corpus.store.root, verdicts.utterances
