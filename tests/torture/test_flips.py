"""One bit of a file is flipped: its reader has the same result, a reason or a VoxstillError, and never another result.

Of some files nothing is stored that could tell: the header of a WAV, the JSON files of a model, and, as long as they
stay valid, the values of a manifest and of a YAML file and the weights of an ARPA file that is not gzipped. Of these it
is only demanded that the reader ends soon, with a result or with a VoxstillError. In the samples of a WAV no flip can
be noticed.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from noise_corpus import encode
from seeds import seeded_random
from tones import PLAIN, TEXTS, speak
from torture import runs
from training.test_whole_checkpoints import Training
from voxstill import cli
from voxstill.audio.decoder import Decoder
from voxstill.core import config
from voxstill.core.errors import VoxstillError
from voxstill.core.records import Label, Utterance, Verdict
from voxstill.data.loader import Batches
from voxstill.data.plan import plan
from voxstill.data.shard_index import open_index
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.filtering.measures import Score
from voxstill.indexing.scan import scan
from voxstill.indexing.segment import IndexRow
from voxstill.nn import students
from voxstill.nn.frontends import LogMelFrontend
from voxstill.storage import figures, manifest, shard_check, shard_format, tables, workdir
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.tasks import classification
from voxstill.tasks.recognition import save_student, vocabulary_of
from voxstill.text import kneser_ney, lm, tokenizer

LIMIT_S = 5.0
"""Of one reading, on the clock of its process; the decoder of audio, which is another process, has one of its own."""
WAV_HEADER = 44  # bytes
TABLES: dict[str, tuple[type[figures.TableFigures], type[Any]]] = {
    "utterances": (figures.IndexFigures, Utterance),
    "labels": (figures.LabelFigures, Label),
    "scores": (figures.ScoreFigures, Score),
    "verdicts": (figures.VerdictFigures, Verdict),
    "sidecars": (figures.ShardFigures, shard_format.Sample),
}


class Unread(Exception):  # noqa: N818
    """An utterance that cannot be read is a line of the step that replaces it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Files of a kind and their reader, whose results can be compared; bits are flipped in the first `num_bytes`."""

    paths: Sequence[Path]
    read: Callable[[], object]
    has_checksum: bool = True
    num_bytes: int | None = None


def tables_of(work: Path) -> Iterator[tuple[str, Kind]]:
    store = Store(str(work))

    def rows(prefix: str, row_type: type[Any]) -> object:
        return [tables.from_parquet(store.read(key), row_type, key) for key in manifest.parts(store, prefix)]

    for name, (kind, row_type) in TABLES.items():
        (recipe,) = workdir.finished_recipes(store, kind.kind)
        prefix = workdir.prefix(kind.kind, recipe)
        folder, read = work / prefix, partial(rows, prefix, row_type)
        yield name, Kind(sorted(folder.glob("*.parquet")), read)
        yield f"_manifest of {name}", Kind([folder / manifest.NAME], read)
        success = partial(workdir.named, store, kind, recipe)
        yield f"_SUCCESS.json of {name}", Kind([folder / tables.SUCCESS], success)
    (recordings,) = (work / "recordings").iterdir()
    index_rows = partial(tables.read, store, f"recordings/{recordings.name}", IndexRow)
    yield "recordings", Kind(sorted(recordings.glob("*.parquet")), lambda: list(index_rows()))


def tars_of(work: Path, cache: Path) -> Iterator[tuple[str, Kind]]:
    """The tars of shards, as a training reads them and as `verify` does, for which no byte is without meaning."""
    store = Store(str(work))
    (recipe,) = workdir.finished_recipes(store, "shards")
    prefix = workdir.prefix("shards", recipe)
    tars = sorted((work / prefix).glob("*.tar"))
    corpus = open_index(store, prefix, cache, splits=("train", "dev", "test"), encode=encode, encoder="")
    planned = plan(corpus.durations_ms, corpus.num_tokens, config.Plan(budget_ms=8000), seed=0, epoch=0)

    def learn() -> object:
        batches = Batches(corpus, planned)
        steps = [batches[k] for k in range(len(batches))]
        if unread := [line for step in steps for line in step.unread]:
            raise Unread(unread)
        return [(batch.ids, batch.audio_BT.numpy().tobytes()) for step in steps for batch in step.batches]

    def verify() -> object:
        for tar in tars:
            sidecar = tables.from_parquet(tar.with_suffix(".parquet").read_bytes(), shard_format.Sample)
            if (fault := shard_check.tar_fault(tar.read_bytes(), sidecar)) is not None:
                raise Unread(fault)
        return None

    yield "tars, in training", Kind(tars, learn)
    yield "tars, in verify", Kind(tars, verify)


def corpus_of(folder: Path, work: Path) -> Iterator[tuple[str, Kind]]:
    """The folder `corpus` of an experiment: the index of the shards, the vocabulary and the classes."""
    store, run = Store(str(work)), RunDir(folder)
    (recipe,) = workdir.finished_recipes(store, "shards")
    prefix = workdir.prefix("shards", recipe)
    frontend = LogMelFrontend(PLAIN)

    def index() -> object:
        rows = open_index(store, prefix, run.corpus, splits=("train", "dev"), encode=encode, encoder="")
        return [(rows.id_of(i), rows.text_of(i), *map(np.ndarray.tolist, rows.tokens_of(i))) for i in range(len(rows))]

    def vocabulary() -> object:
        return vocabulary_of(run, TEXTS, config.Config(), frontend).pieces

    def classes() -> object:
        return classification.corpus_of(of_words, run, store, prefix, frontend)[1]

    of_words = config.Config(student=config.Student(task="classes", target="text"))
    index()
    (folder_of_index,) = run.corpus.iterdir()
    yield "index of shards", Kind([path for path in sorted(folder_of_index.iterdir()) if path.stat().st_size], index)
    vocabulary()
    yield "vocabulary.json", Kind([run.corpus / "vocabulary.json"], vocabulary)
    classes()
    yield "classes.json", Kind([run.corpus / "classes.json"], classes)


def audio_of(folder: Path, decoder: Decoder) -> Iterator[tuple[str, Kind]]:
    folder.mkdir()
    samples_T = speak("ba du ko")[0]

    def decode(path: Path) -> object:
        audio = decoder.decode(path.read_bytes())
        return audio.codec, audio.rate_hz, audio.num_channels, audio.samples_T.tobytes()

    for name, rate_hz, form in (("plain", 16_000, "FLAC"), ("stereo", 44_100, "FLAC"), ("header", 16_000, "WAV")):
        path = folder / f"{name}.{form.lower()}"
        channels = 2 if name == "stereo" else 1
        soundfile.write(path, np.stack([samples_T] * channels, axis=1), rate_hz, format=form, subtype="PCM_16")
        yield f"{form}, {name}", Kind([path], partial(decode, path), *((False, WAV_HEADER) if form == "WAV" else ()))


def models_of(folder: Path) -> Iterator[tuple[str, Kind]]:
    """A checkpoint, and the folder of a finished student."""
    Training(folder / "training").learn(1)
    (checkpoint,) = (folder / "training" / "checkpoints").glob("epoch=*")

    def resume() -> object:
        return {name: value.numpy().tobytes() for name, value in Training(folder / "training").bits().items()}

    for path in sorted(checkpoint.iterdir()):
        yield f"{path.name} of a checkpoint", Kind([path], resume)
    run, vocabulary = RunDir(folder / "exp"), tokenizer.train(TEXTS, "word", 9)
    run.path.mkdir()
    model = students.build("tiny", len(vocabulary.pieces), dropout=0.0, seed=0)
    save_student(run, model, vocabulary, LogMelFrontend(PLAIN), model.state_dict())
    clip_T = speak(TEXTS[0])[0]

    def load() -> object:
        student = Recognizer(RecognizerOptions(model=str(run.model)))
        student.load()
        weights = hashlib.sha256()
        for name, value in sorted(student._model.model.state_dict().items()):
            weights.update(name.encode() + value.numpy().tobytes())
        (hypothesis,) = student.transcribe_batch([clip_T])
        return student.vocabulary.pieces, weights.hexdigest(), hypothesis

    for path in sorted(run.model.iterdir()):
        yield f"{path.name} of a model", Kind([path], load)


def texts_of(folder: Path, source: Path) -> Iterator[tuple[str, Kind]]:
    """The manifest of a source, language models and the configuration."""
    folder.mkdir()
    arpa = "\n".join(kneser_ney.arpa([*TEXTS, "ba ba du", "ko ko"], 3)).encode()
    (folder / "lm.arpa").write_bytes(arpa)
    (folder / "lm.arpa.gz").write_bytes(gzip.compress(arpa))
    (folder / "config.yaml").write_text(config.template())

    def read_lm(name: str) -> Callable[[], object]:
        def read() -> object:
            model = lm.read(str(folder / name))
            return model.ids, [column.tobytes() for column in model.automaton], model.logprobs(["ba", "du", "xy"])

        return read

    yield "JSONL", Kind([source], lambda: list(scan(config.Source(uri=str(source)))), has_checksum=False)
    yield "ARPA", Kind([folder / "lm.arpa"], read_lm("lm.arpa"), has_checksum=False)
    yield "ARPA, gzipped", Kind([folder / "lm.arpa.gz"], read_lm("lm.arpa.gz"))
    path = folder / "config.yaml"
    yield "YAML", Kind([path], lambda: config.load(str(path), [], {}), has_checksum=False)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Kind]]:
    folder = tmp_path_factory.mktemp("flips")
    source = runs.corpus(folder / "corpus", 12)
    path = str(runs.configure(folder, source))
    work = folder / "work"
    for command in (
        ["index", str(source), "--work", str(work)],
        *([step, str(work)] for step in ("label", "filter", "shard")),
    ):
        assert cli.main([*command, "--config", path]) == 0
    with Decoder(60, 512) as decoder:
        yield {
            **dict(tables_of(work)),
            **dict(tars_of(work, folder / "cache")),
            **dict(corpus_of(folder / "run", work)),
            **dict(audio_of(folder / "audio", decoder)),
            **dict(models_of(folder)),
            **dict(texts_of(folder / "texts", source)),
        }


def outcome(kind: Kind, expected: object, chance: random.Random) -> tuple[str, str]:
    """What comes of a flipped bit, and which one it was; the file is as before then."""
    path = chance.choice(kind.paths)
    whole = path.read_bytes()
    data, at, bit = bytearray(whole), chance.randrange(kind.num_bytes or len(whole)), chance.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    start = time.process_time()
    try:
        what = "the same" if kind.read() == expected else "another"
    except Unread:
        what = "a reason"
    except VoxstillError as error:
        is_clear = error.why and error.fix and error.what != "decoding hung"
        what = "an error" if is_clear else str(error)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
    finally:
        took_s = time.process_time() - start
        path.write_bytes(whole)
    if took_s > LIMIT_S:
        what += f" after {took_s:.1f} s"
    return what, f"bit {bit} of byte {at} of {path.name}"


def test_a_flipped_bit_is_the_same_result_a_reason_or_an_error(kinds: dict[str, Kind], torture: Any) -> None:
    chance, total = seeded_random(), torture.count(short=72, full=10_000)
    expected = {name: kind.read() for name, kind in kinds.items()}
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    names = list(kinds)
    chance.shuffle(names)
    for number in range(total):
        name = names[number % len(names)]
        what, where = outcome(kinds[name], expected[name], chance)
        allowed = (
            {"the same", "a reason", "an error"} if kinds[name].has_checksum else {"the same", "another", "an error"}
        )
        assert what in allowed, (name, where)
        outcomes[name][what] += 1
    for name, counts in sorted(outcomes.items()):
        torture.tell(f"flipped bits in {name}", ", ".join(f"{num} {what}" for what, num in counts.most_common()))
    torture.tell("flipped bits", f"{total:,} in {len(names)} kinds of files")
