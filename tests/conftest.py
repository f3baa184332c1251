"""What every test may lean on: pinned threads, the shared data where it lies beside the checkout."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import pytest  # noqa: E402


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """The folder of one shared data set; the test is skipped where it is not at hand."""
    root = Path(os.environ.get("VOXSTILL_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))

    def find(name: str) -> Path:
        if not (root / name).exists():
            pytest.skip(f"the data set {name} is not at hand")
        return root / name

    return find


@pytest.fixture(scope="session")
def tone_student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a student that knows the language of `tones` by heart."""
    from tones import TEXTS, by_heart
    from voxstill.nn.frontend import EXTRACTOR
    from voxstill.text import tokenizer

    folder: Path = tmp_path_factory.mktemp("exp") / "model"
    vocabulary = tokenizer.train(TEXTS, "word", 9)
    model, _ = by_heart(vocabulary, timed=True, num_steps=58)
    model.save_pretrained(folder)
    vocabulary.save(folder, EXTRACTOR)
    return folder
