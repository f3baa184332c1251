"""Results of evaluations: figures with what they are of, and the store of them in an experiment folder.

Each result is a folder `evaluation/<name>/` with its figures and the files beside them, such as references and
hypotheses. The name follows from corpus, split, decoding, normalizer and recogniser: the same judging again replaces
its own result and no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

import pydantic

from voxstill.core.config import Config, Decode
from voxstill.core.errors import DataError, StorageError
from voxstill.core.monitor import log
from voxstill.core.records import fingerprint
from voxstill.core.result import NOT_IN_JSON, Result, aligned, to_json
from voxstill.nn import loading
from voxstill.storage.redaction import redact_uri
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store

FIGURES, REFERENCES, HYPOTHESES = "figures.json", "ref.jsonl", "hyp.jsonl"
"""Names of the files of a result."""
STUDENT = "model"
"""The recogniser of a result that is of `model/`, the finished student of the experiment."""
EARLIER = "earlier model"
"""The recogniser of a result whose weights are no longer in `model/`, as the training went on since."""
Row = Mapping[str, Any]
"""An object of a file of references or hypotheses."""
_EARLIER_SPLITS = ("train", "dev", "test")
_UNSAFE = re.compile(r"[^\w-]+")
_Number = Annotated[float, pydantic.Field(ge=-1e15, le=1e15)]
_Rate = _Number | None
_Interval = Annotated[list[_Number], pydantic.Field(min_length=2, max_length=2)]
_Count = Annotated[int, pydantic.Field(ge=0, lt=1 << 63)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus(Result):
    """Which utterances were judged: the work folder, the recipe of the table, and the file of human texts if any."""

    work: str
    utterances: str
    texts: str | None = None

    @property
    def name(self) -> str:
        """The name of the work folder."""
        return self.work.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Result):
    """The figures of one split, `split` among them, and files to be kept beside them, such as a page.

    `detail` names the figures that are too long for a terminal, where there is no `text` for people.
    """

    figures: Mapping[str, Any]
    text: str | None = field(default=None, compare=False, metadata=NOT_IN_JSON)
    detail: tuple[str, ...] = field(default=(), compare=False, metadata=NOT_IN_JSON)
    files: Mapping[str, str] = field(default_factory=dict, compare=False, metadata=NOT_IN_JSON)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", to_json(self.figures))

    def to_dict(self) -> dict[str, object]:
        """The figures."""
        return dict(self.figures)

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> Self:
        """The same figures, without files."""
        return cls(figures=figures)

    def to_text(self) -> str:
        """The text, or the figures that fit on a terminal."""
        if self.text is not None:
            return self.text
        return aligned({name: value for name, value in self.figures.items() if name not in self.detail})

    def of(
        self,
        corpus: Corpus,
        recogniser: str = STUDENT,
        warnings: Sequence[str] = (),
        *,
        model: str | None = None,
        weights: str | None = None,
    ) -> Self:
        """The same figures, which say of which utterances and of which recogniser they are, with more warnings.

        `model` is what was judged, as the user named it, and `weights` the version of the finished student.
        """
        more: dict[str, object] = {"warnings": [*warnings, *self.figures.get("warnings", ())]} if warnings else {}
        more |= {} if model is None else {"model": model}
        more |= {} if weights is None else {"weights": weights}
        return replace(self, figures={**self.figures, **more, "corpus": corpus, "recogniser": recogniser})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """A result in an experiment folder: its figures and where its files are.

    Figures of earlier versions do not say `corpus` and `recogniser`.
    """

    path: Path
    figures: Mapping[str, Any]
    references: Path
    hypotheses: Path

    @property
    def split(self) -> str:
        """The split that was judged."""
        return str(self.figures["split"])

    @property
    def corpus(self) -> Corpus | None:
        """The utterances that were judged."""
        corpus = self.figures.get("corpus")
        return None if corpus is None else Corpus.from_dict(corpus)

    @property
    def recogniser(self) -> str:
        """`model` or `earlier model`, the name of a checkpoint, or that of a teacher."""
        judged = self.figures.get("weights")
        if judged is not None and loading.version(RunDir(self.path.parents[1]).model) not in (None, judged):
            return EARLIER
        return str(self.figures.get("recogniser", STUDENT))

    @property
    def has_texts(self) -> bool:
        """Whether references and hypotheses are there, as of a recogniser."""
        return self.references.is_file() and self.hypotheses.is_file()

    def is_beside(self, other: StoredResult) -> bool:
        """Whether both judge the same utterances by the same rules."""
        return all(self.figures.get(key) == other.figures.get(key) for key in ("corpus", "split", "normalizer"))


class _Corpus(pydantic.BaseModel):
    work: str
    utterances: str
    texts: str | None = None


class _Decoding(pydantic.BaseModel):
    beam: int


class _Group(pydantic.BaseModel):
    words: _Count
    wer: _Rate


class _Row(pydantic.BaseModel):
    """What is read of a line of references or hypotheses."""

    model_config = pydantic.ConfigDict(strict=True)

    id: str
    text: str
    speaker: str | None = None
    dataset: str | None = None
    dialect: str | None = None
    start_ms: _Count | None = None
    end_ms: _Count | None = None


class _Figures(pydantic.BaseModel):
    """What is read of the figures of a result; those of another task lack some, and more may stand there."""

    model_config = pydantic.ConfigDict(strict=True)

    split: str
    corpus: _Corpus | None = None
    recogniser: str = STUDENT
    weights: str | None = None
    teacher: str = ""
    order: int = 0
    normalizer: str | None = None
    decode: _Decoding | None = None
    wer: _Rate = None
    cer: _Rate = None
    accuracy: _Rate = None
    eer: _Rate = None
    interval: _Interval | None = None
    interval_over: str | None = None
    words: _Count = 0
    utterances: _Count = 0
    parameters: _Count | None = None
    rtfx: _Rate = None


_BREAKDOWNS = pydantic.TypeAdapter(dict[str, dict[str, _Group]])


def name_of(figures: Mapping[str, Any]) -> str:
    """The name of the folder of a result: readable parts, and a hash of everything that distinguishes it from
    others."""
    corpus, decode = Corpus.from_dict(figures["corpus"]), _changed(figures.get("decode"))
    key = (corpus.to_dict(), figures["split"], decode, figures.get("normalizer"), figures["recogniser"])
    recogniser = [] if figures["recogniser"] == STUDENT else [figures["recogniser"]]
    parts = [figures["split"], corpus.name, *recogniser, decoding(figures), figures.get("normalizer") or ""]
    readable = [_UNSAFE.sub("-", part).strip("-")[:40] for part in parts]
    return ".".join([*filter(None, readable), fingerprint(key)[:8]])


def decoding(figures: Mapping[str, Any]) -> str:
    """The decoding in a word, such as `greedy`, `grammar` or `beam-16-lm-tune`; empty for a teacher, which has none."""
    decode = figures.get("decode")
    if decode is None:
        return ""
    if decode["beam"] == 1:
        return "grammar" if decode.get("grammar") else "greedy"
    return "-".join([f"beam-{decode['beam']}", *(name for name in ("lm", "tune", "boost") if decode.get(name))])


def decoding_in_full(figures: Mapping[str, Any]) -> str:
    """The decoding with the file of its language model and its weights, where these are not at their default."""
    changed = _changed(figures.get("decode")) or {}
    more = [PurePosixPath(str(changed["lm"])).name] if changed.get("lm") else []
    weights = ("lm_weight", "word_bonus", "boost_weight", "blank_penalty")
    more += [f"{name} {changed[name]}" for name in weights if name in changed]
    more += [f"chunks of {changed['chunk_ms']} ms"] if changed.get("chunk_ms") else []
    return ", ".join(filter(None, [decoding(figures), *more]))


def _changed(decode: Row | None) -> Row | None:
    """The options of decoding that are not at their default: so a new option renames no result."""
    default = Decode().model_dump()
    return None if decode is None else {name: value for name, value in decode.items() if value != default.get(name)}


def _asked(decode: Row | None) -> Row | None:
    """The options of decoding that are not at their default, without weights that were tuned: they follow from the
    others."""
    changed = _changed(decode)
    if changed is None or "tune" not in changed:
        return changed
    without = ("lm_weight", "word_bonus") if "lm" in changed else ("tune",)
    return {name: value for name, value in changed.items() if name not in without}


def write(folder: Path, evaluation: Evaluation) -> None:
    """Write a result into its folder below the store, its figures last.

    Where that cannot be written, as in the experiment of another user, it is a warning: the figures are
    printed nevertheless.
    """
    own = folder / name_of(evaluation.figures)
    try:
        own.mkdir(parents=True, exist_ok=True)
        store = Store(str(own))
        for name, text in evaluation.files.items():
            store.replace(name, text.encode())
        store.replace(FIGURES, (json.dumps(evaluation.figures, indent=1, ensure_ascii=False) + "\n").encode())
    except (OSError, StorageError) as error:
        log.warning("`%s` is not written: %s", own, error.why if isinstance(error, StorageError) else error)


def read(path: Path) -> StoredResult | None:
    """The result in a folder; None if the folder holds none."""
    file = path / FIGURES
    return _result(path, _figures(file)) if file.is_file() else None


def read_all(folder: Path) -> list[StoredResult]:
    """All results of a store, by name, and then those of earlier versions."""
    folders = sorted(path for path in folder.glob("*") if path.is_dir())
    stored = (read(path) for path in folders)
    return [*(result for result in stored if result is not None), *_earlier(folder), *_earlier(folder / "with_lm")]


def rows(path: Path) -> list[Row]:
    """The objects of a file of references or hypotheses; DataError if it has been changed into something else."""
    try:
        parsed = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        for row in parsed:
            _Row.model_validate(row)
        json.dumps(parsed, ensure_ascii=False).encode()  # half of a surrogate pair is a ValueError
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    return parsed


def _result(path: Path, figures: Mapping[str, Any]) -> StoredResult:
    return StoredResult(path=path, figures=figures, references=path / REFERENCES, hypotheses=path / HYPOTHESES)


def _earlier(folder: Path) -> Iterator[StoredResult]:
    """Results as earlier versions wrote them: one for each split, in files that begin with its name."""
    for split in _EARLIER_SPLITS:
        file, *texts = (folder / f"{split}{ending}" for ending in (".json", ".ref.jsonl", ".hyp.jsonl"))
        if any(path.is_file() for path in (file, *texts)):
            figures = {"split": split, **(_figures(file) if file.is_file() else {})}
            yield StoredResult(path=file, figures=figures, references=texts[0], hypotheses=texts[1])


def _figures(file: Path) -> Row:
    try:
        figures: Row = json.loads(file.read_text(encoding="utf-8"))
        _Figures.model_validate(figures)
        json.dumps(figures, ensure_ascii=False).encode()  # half of a surrogate pair is a ValueError
        _BREAKDOWNS.validate_python({name: rows for name, rows in figures.items() if name.startswith("by_")})
    except (ValueError, RecursionError) as error:
        raise damaged(file, error) from None
    return figures


def damaged(path: Path, error: object) -> DataError:
    """The error for a file of a result that has been changed into something else."""
    why = " ".join(str(error).split())
    if isinstance(error, pydantic.ValidationError):
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return DataError(
        f"`{path}` is not a result of an evaluation", code="table-broken", why=why, fix="remove it and evaluate again"
    )


def own(stored: Sequence[StoredResult], cfg: Config | None) -> list[StoredResult]:
    """Those of the finished student on the corpus of the configuration `cfg`, decoded and normalized as that says.

    Where there are none, those that are nearest to it, but none of an earlier model or of a teacher. One of an earlier
    version, which does not say its corpus, counts where no newer one does.
    """
    wanted: list[Callable[[StoredResult], bool]] = [lambda result: result.recogniser == STUDENT]
    if cfg is not None:
        work, decode = redact_uri(Store(cfg.work).root), _asked(cfg.decode.model_dump())
        wanted += [
            lambda result: result.corpus is not None and result.corpus.work == work,
            lambda result: _asked(result.figures.get("decode")) == decode,
            lambda result: result.figures.get("normalizer") == cfg.evaluate.normalizer,
        ]
    candidates = [result for result in stored if result.recogniser != EARLIER and "teacher" not in result.figures]
    for fits in (*wanted, lambda result: result.corpus is not None):
        candidates = list(filter(fits, candidates)) or candidates
    return candidates
