"""Names of models: folders, and names on the Hugging Face Hub with or without a revision."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxstill.core.errors import ConfigError
from voxstill.decoding import checkpoint_files


@pytest.mark.parametrize(
    ("model", "revision", "expected"),
    [
        ("owner/name", None, ("owner/name", None)),
        ("owner/name", "main", ("owner/name", "main")),
        ("owner/name@v1.0", None, ("owner/name", "v1.0")),
        ("owner/name@refs/pr/3", None, ("owner/name", "refs/pr/3")),
        ("owner/name@0123abc", "0123abc", ("owner/name", "0123abc")),
        ("folder/with/three@parts", None, ("folder/with/three@parts", None)),
    ],
)
def test_a_name_on_the_hub_may_hold_its_revision(
    model: str, revision: str | None, expected: tuple[str, str | None]
) -> None:
    assert checkpoint_files.split_revision(model, revision) == expected


def test_two_revisions_are_an_error() -> None:
    with pytest.raises(ConfigError, match="contains a revision"):
        checkpoint_files.split_revision("owner/name@v1", "v2")


def test_a_folder_is_none_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checkpoint_files.on_hub("owner/name@v1")
    assert not checkpoint_files.on_hub("owner/name@")
    assert not checkpoint_files.on_hub("/owner/name@v1")
    (tmp_path / "owner").mkdir()
    assert not checkpoint_files.on_hub("owner/name@v1")
