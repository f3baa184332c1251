"""Fixtures of all tests: pinned threads, the shared data sets beside the checkout, an S3 server, a small student."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

# else each of the processes that tests start compiles the whole package again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("RAY_worker_niceness", "0")  # 15, Ray's own, lets workers starve where tests run side by side

import hypothesis  # noqa: E402
import pytest  # noqa: E402

import loose_files  # noqa: E402
from servers import SetEnvironment, moto_server, reset_moto, s3_environment  # noqa: E402
from shared_folders import made_once  # noqa: E402
from voxstill import engine  # noqa: E402
from voxstill.storage import clients  # noqa: E402
from voxstill.storage.store import Store  # noqa: E402

hypothesis.settings.register_profile("voxstill", deadline=None)  # a busy machine is no fault of the code
hypothesis.settings.load_profile("voxstill")


def pytest_collection_finish() -> None:
    """What imports have made stays to the end: without this every full collection looks through all of it."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """The folder of one shared data set; the test is skipped where it is not at hand."""
    root = Path(os.environ.get("VOXSTILL_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))

    def find(name: str) -> Path:
        if not (root / name).exists():
            pytest.skip(f"the data set {name} is not at hand")
        return root / name

    return find


@pytest.fixture(autouse=True)
def log_reaches_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that another test ran in this process keeps the log from pytest."""
    monkeypatch.setattr(logging.getLogger("voxstill"), "propagate", True)


@pytest.fixture(scope="module", autouse=True)
def ray_of_folder(request: pytest.FixtureRequest, folder_before: list[Path]) -> None:
    """Ray that tests have started in this process goes on for the files of one folder, as its start takes seconds."""
    if folder_before != [request.path.parent]:
        engine.shutdown()
        folder_before[:] = [request.path.parent]


@pytest.fixture(scope="session")
def folder_before() -> Iterator[list[Path]]:
    """The folder of the file of tests before this one."""
    yield []
    engine.shutdown()


@pytest.fixture
def set_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetEnvironment]:
    """Set variables of the environment; clients made from others are forgotten before and after."""

    def to(variables: dict[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        clients.client.cache_clear()

    for name in [name for name in os.environ if name.startswith(("AWS_", "OSS_"))]:
        monkeypatch.delenv(name)
    to({})
    yield to
    clients.client.cache_clear()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[int]:
    """The port of an S3 server for tests one after the other."""
    with moto_server() as port:
        yield port


@pytest.fixture
def s3(s3_server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty bucket on a server that has no other."""
    reset_moto(s3_server, "bucket")
    for name, value in s3_environment(s3_server).items():
        monkeypatch.setenv(name, value)
    clients.client.cache_clear()  # of another test's server
    yield Store("s3://bucket")
    clients.client.cache_clear()


@pytest.fixture(scope="session")
def tone_student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a student that overfits the language of `tones`."""

    def make(folder: Path) -> None:
        from tones import TEXTS, overfitted_student
        from voxstill.nn.log_mel import LogMel
        from voxstill.text import tokenizer

        vocabulary = tokenizer.train(TEXTS, "word", 9)
        model, _ = overfitted_student(vocabulary, timed=True, num_steps=58)
        model.save_pretrained(folder / "model")
        vocabulary.save(folder / "model", LogMel().extractor)

    return made_once(tmp_path_factory, "tone-student", make) / "model"


@pytest.fixture(scope="session")
def exported_tone_student(tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same student exported."""
    return _exported(tone_student, tmp_path_factory, "tones-onnx")


@pytest.fixture(scope="session")
def streaming_tone_student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a streaming student that overfits the language of `tones`."""

    def make(folder: Path) -> None:
        from tones import TEXTS, overfitted_streaming_student
        from voxstill.nn.log_mel import LogMel
        from voxstill.text import tokenizer

        vocabulary = tokenizer.train(TEXTS, "word", 9)
        overfitted_streaming_student(vocabulary, num_steps=70).save_pretrained(folder / "model")
        vocabulary.save(folder / "model", LogMel(normalization="none").extractor, "streaming")

    return made_once(tmp_path_factory, "streaming-tone-student", make) / "model"


@pytest.fixture(scope="session")
def exported_streaming_tone_student(streaming_tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same student exported, for two lengths of chunks."""
    return _exported(streaming_tone_student, tmp_path_factory, "streaming-onnx", (560, 160))


def _exported(source: Path, factory: pytest.TempPathFactory, name: str, chunks_ms: Sequence[int] = ()) -> Path:
    def make(folder: Path) -> None:
        from voxstill.exporting import folder as folders
        from voxstill.exporting import student

        loaded = student.load(source, chunks_ms)
        folders.write_models(loaded, source, folder)
        folders.write_manifest(folder, loaded, "tones", "0", {})

    return made_once(factory, name, make)


@pytest.fixture(scope="session")
def conversations() -> ModuleType:
    """`benchmarks/conversations.py`, which is in no package."""
    return loose_files.load("benchmarks/conversations.py")


@pytest.fixture
def embedded_weights() -> None:
    """Skips the test where the wheel with the weights is not installed."""
    try:
        distribution("resemblyzer")
    except PackageNotFoundError:
        pytest.skip("the wheel of Resemblyzer, which has the weights, is not installed")
