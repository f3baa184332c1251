"""explore: the corpus of a work folder in a browser, with what students and people say of it."""

from __future__ import annotations

import contextlib
import getpass
import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from voxstill.core import scratch
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError, StorageError
from voxstill.core.monitor import log
from voxstill.core.records import Label, Utterance, Verdict
from voxstill.core.result import Result
from voxstill.filtering.measures import Score
from voxstill.filtering.rules import RULES
from voxstill.labelling import begun
from voxstill.pipeline import recipes
from voxstill.storage import corrections, joined_file, removals, workdir
from voxstill.storage.figures import LabelFigures, ShardFigures, VerdictFigures
from voxstill.storage.redaction import redact_uri
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store
from voxstill.text.normalize import normalizer, words

if TYPE_CHECKING:
    from voxstill.explorer.session import Session
    from voxstill.explorer.staging import Sources, TableSource

PACKAGES = ("duckdb", "starlette", "uvicorn")
"""Of the extra `explore`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreResult(Result):
    """Where the page is, once it is ready; the address has the token that opens it."""

    url: str
    utterances: int

    def to_text(self) -> str:
        """The address."""
        return self.url


def explore(
    cfg: Config,
    experiments: Sequence[str],
    port: int,
    ready: Callable[[ExploreResult], None],
    *,
    edit: bool = False,
    judge: str | None = None,
) -> None:
    """Serve the explorer on loopback until SIGTERM or SIGINT; `ready` is called once it answers.

    ConfigError if packages are missing or the port is taken, DataError if there are no utterances.
    """
    check_packages()
    import pyarrow as pa

    from voxstill.explorer import server

    pa.set_memory_pool(pa.system_memory_pool())  # a fifth less memory and time for a build than Arrow's own
    with server.listening(port) as listener, opened(cfg, experiments, edit=edit, judge=judge) as session:
        num = session.corpus.about.num_rows
        server.run(session, listener, lambda url: ready(ExploreResult(url=url, utterances=num)))


@contextlib.contextmanager
def opened(
    cfg: Config, experiments: Sequence[str] = (), *, edit: bool = False, judge: str | None = None
) -> Iterator[Session]:
    """What an explorer shows: the joined file, which is built where it is not there, and what is beside it."""
    from voxstill.audio.read_utterances import reading
    from voxstill.explorer import joined
    from voxstill.explorer.audio import Sounds
    from voxstill.explorer.corpus import Corpus
    from voxstill.explorer.errors import JoinedFileLost
    from voxstill.explorer.session import Facts, RuleFacts, Session
    from voxstill.pipeline.explore_experiments import facts_of

    work = Store(cfg.work)
    if edit:
        with contextlib.suppress(StorageError):  # another process does so
            corrections.compact(work)
    facts = facts_of(cfg, experiments)
    normalize = normalizer(cfg.evaluate.normalizer)

    def session_in(folder: Path) -> Session:
        path, sources = joined.ensure(work, lambda: sources_of(cfg), folder)
        main = next((source.text_column for source in sources.tables if source.is_main), None)
        corpus = Corpus(path, [one.texts for one in facts if one.texts is not None])
        with contextlib.ExitStack() as undo:
            undo.callback(corpus.close)
            session = Session(
                work,
                corpus,
                Sounds(work, reading(cfg)),
                Facts(
                    title=redact_uri(work.root),
                    utterances=sources.tables[0].prefix,
                    main=main,
                    rules=[RuleFacts(name=rule.name, why=rule.why) for rule in RULES],
                    experiments=facts,
                    judge=judge or _user(),
                    is_editable=edit,
                ),
                lambda text: words(normalize(text)),
            )
            undo.pop_all()
        return session

    with _folder(cfg) as folder:
        try:
            session = session_in(folder)
        except JoinedFileLost as error:
            log.warning("explore: the joined file is built again (%s)", error.why)
            session = session_in(folder)
        try:
            yield session
        finally:
            session.close()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # as in a container, whose user has no name
        return f"user {os.getuid()}"


def sources_of(cfg: Config) -> Sources:
    """The tables that are joined: the finished ones of this configuration, and the labels of all teachers."""
    from voxstill.explorer.staging import Sources, TableSource

    work = Store(cfg.work)
    source = recipes.finished_utterances(cfg)
    utterances = workdir.prefix("utterances", source.recipe)
    verdicts = _verdicts(cfg, source.recipe)
    tables = [TableSource(role="utterances", prefix=utterances, kind=Utterance), *_labels(work, verdicts)]
    if verdicts is not None:
        tables.append(TableSource(role="scores", prefix=workdir.prefix("scores", verdicts.scores), kind=Score))
        tables.append(TableSource(role="verdicts", prefix=workdir.prefix("verdicts", verdicts.recipe), kind=Verdict))
    shards = _shards(work, verdicts)
    if shards is not None:
        tables.append(TableSource(role="shards", prefix=workdir.prefix("shards", shards), kind=Sample))
    removed = frozenset(removals.of(work, utterances))
    return Sources(tables=tuple(tables), removed=removed, removed_identity=removals.identity(removed))


def check_packages() -> None:
    """ConfigError if packages of the extra `explore` are missing."""
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigError(
            "the explorer is not installed",
            code="missing-package",
            why=f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            fix="pip install 'voxstill[explore]'",
        )


@contextlib.contextmanager
def _folder(cfg: Config) -> Iterator[Path]:
    """A folder for the joined file; one that goes at the end where the file is not there and cannot be kept."""
    folder = joined_file.folder_of(cfg)
    if folder is None:
        why = f"`{cfg.work}` is on remote storage and `cache.folder` is not set"
    else:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"`{folder}` cannot be made ({error.strerror})"
        else:
            from voxstill.explorer import joined

            if _can_write(folder) or joined.is_current(Store(cfg.work), sources_of(cfg), folder):
                yield folder
                return
            why = f"`{folder}` cannot be written"
    log.warning("explore: %s: the joined file is not saved", why)
    with scratch.folder() as temporary:
        yield temporary


def _can_write(folder: Path) -> bool:
    """Whether this user may write all of the joined file's folder: another may have made it, or its lock."""
    return all(os.access(path, os.W_OK) for path in (folder, *folder.glob("lock"), *folder.glob("*.duckdb")))


def _verdicts(cfg: Config, utterances: str) -> VerdictFigures | None:
    """The only verdicts of these utterances, whatever made them, or those of the configuration."""
    work = Store(cfg.work)
    there = [workdir.named(work, VerdictFigures, recipe) for recipe in workdir.finished_recipes(work, "verdicts")]
    of_utterances = [verdicts for verdicts in there if verdicts.utterances == utterances]
    if len(of_utterances) == 1:
        return of_utterances[0]
    try:
        return recipes.finished_verdicts(cfg)
    except DataError as error:
        if there:
            log.warning("explore: no scores are shown: %s", error.what)
        return None


def _labels(work: Store, verdicts: VerdictFigures | None) -> list[TableSource]:
    """The labels of every teacher, finished or not; those that were judged first."""
    from voxstill.explorer.staging import TableSource

    there = begun.recipes(work)
    main = (
        verdicts.labels if verdicts is not None else next(iter(workdir.finished_recipes(work, "labels") or there), None)
    )
    ordered = sorted(there, key=lambda recipe: (recipe != main, recipe))
    names = {recipe: _teacher(work, recipe) for recipe in ordered}
    several = [name for name, num in Counter(names.values()).items() if num > 1]
    return [
        TableSource(
            role="labels",
            prefix=workdir.prefix("labels", recipe),
            kind=Label,
            title=f"{names[recipe]} {recipe[:8]}" if names[recipe] in several else names[recipe],
            is_main=recipe == main,
        )
        for recipe in ordered
    ]


def _teacher(work: Store, recipe: str) -> str:
    figures = workdir.success(work, LabelFigures, recipe)
    name = figures.teacher if figures is not None else str(begun.options(work, recipe).get("name", ""))
    return name.partition("@")[0] or recipe


def _shards(work: Store, verdicts: VerdictFigures | None) -> str | None:
    """The recipe of the shards to listen to: those of the verdicts before others, and the newest generation."""
    there = [workdir.named(work, ShardFigures, recipe) for recipe in workdir.finished_recipes(work, "shards")]
    wanted = None if verdicts is None else verdicts.recipe
    there.sort(key=lambda figures: (figures.verdicts == wanted, figures.generation or 0, figures.recipe))
    return there[-1].recipe if there else None
