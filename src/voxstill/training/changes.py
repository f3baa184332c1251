"""Copies of a model that hold only the weights that differ from those of its base, the checkpoint that it started with.

`changes.safetensors` has the weights that differ. Its metadata has the base, the SHA-256 of its weights, and the names
of those that are taken from it, with the type that they have in the model. Put together again they are the same bits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from voxstill.core.atomic import atomic_folder
from voxstill.core.errors import ConfigError, DataError, first_line
from voxstill.decoding import checkpoint_files
from voxstill.nn import checkpoints, loading

NAME = "changes.safetensors"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_BASE, _SUM, _TAKEN = "base", "base_sha256", "from_base"


def base_folder(base: str) -> Path:
    """The folder with the weights of a base, a folder or a name on the Hub; ConfigError if it has none."""
    folder = checkpoint_files.fetch(base, None, _WEIGHTS) if checkpoint_files.on_hub(base) else Path(base)
    if not list(folder.glob("*.safetensors")):
        raise ConfigError(
            f"`{base}` has no weights to compare with",
            code="changed-weights",
            why="it has no *.safetensors file",
            fix="give the checkpoint that the student started from, saved as safetensors",
        )
    return folder


def keep_changes(folder: Path, base: str) -> None:
    """Replace the weights in a model folder by those that differ from the base, in the precision of the folder."""
    origin = base_folder(base)
    before = _read(sorted(origin.glob("*.safetensors")))
    paths = sorted(folder.glob("*.safetensors"))
    changed, taken = dict[str, Tensor](), dict[str, str]()
    for name, value in _read(paths).items():
        if name in before and before[name].shape == value.shape and torch.equal(before[name].to(value.dtype), value):
            taken[name] = str(value.dtype).removeprefix("torch.")
        else:
            changed[name] = value
    digest = checkpoints.weights_digest(str(origin))
    about = {_BASE: base, _SUM: str(digest), _TAKEN: json.dumps(taken), "format": "pt"}
    save_file(changed, folder / NAME, about)
    for path in (*paths, *folder.glob("*.safetensors.index.json")):
        path.unlink()
    loading.write_sums(folder)


def restore(copy: Path, output: Path, base: str | None = None) -> None:
    """Write the whole model of which `copy` has the changes, as it would be without `keep_changes`.

    `base` says where the base is now. DataError if the copy is broken or none, or the base is not the one that the
    student started with.
    """
    for name, reason in loading.sum_faults(copy).items():
        raise DataError(
            f"`{copy / name}` is broken",
            code="checkpoint-broken",
            why=reason,
            fix="copy it again",
        )
    try:
        with safe_open(copy / NAME, "pt") as file:
            about = file.metadata() or {}
        changed = _read([copy / NAME])
        base, digest, taken = base or about[_BASE], about[_SUM], json.loads(about[_TAKEN])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(
            f"`{copy}` contains no copy of changed weights",
            code="changed-weights",
            why=first_line(error),
            fix=f"give a folder with {NAME}, which `train.export_changes` writes",
        ) from None
    folder = base_folder(base)
    if (actual := checkpoints.weights_digest(str(folder))) != digest:
        raise DataError(
            f"`{base}` is not the base of `{copy}`",
            code="changed-weights",
            why=f"the SHA-256 of its weights is {actual}, but the student started from {digest}",
            fix="give the original base",
        )
    before = _read(sorted(folder.glob("*.safetensors")))
    whole = {name: before[name].to(getattr(torch, dtype)) for name, dtype in taken.items()} | changed
    with atomic_folder(output) as draft:
        for path in copy.iterdir():
            if path.name not in (NAME, loading.SUMS):
                shutil.copyfile(path, draft / path.name)
        save_file(whole, draft / "model.safetensors", {"format": "pt"})
        loading.write_sums(draft)


def _read(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The tensors of some files."""
    tensors = dict[str, Tensor]()
    for path in paths:
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is not a mapping
    return tensors
