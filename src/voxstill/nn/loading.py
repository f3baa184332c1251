"""Weights of a checkpoint into a model of `transformers`: all of them, or an error that names what does not fit.

`transformers` draws weights at random where a checkpoint lacks them or has them in another shape, and says so in a
warning at most. The code that comes with a checkpoint never runs unless it is asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from voxstill.core.errors import DataError, first_line

if TYPE_CHECKING:
    from transformers import PretrainedConfig

HEADS = (
    "classifier",
    "ctc_head",
    "decoder",
    "encoder_projector",
    "feature_extractor",
    "joint",
    "layer_weights",
    "lm_head",
    "objective",
    "project_hid",
    "project_q",
    "projector",
    "quantizer",
    "tdnn",
)
"""First parts of the names of what stands above an encoder, for all tasks."""
SUMS = "SHA256SUMS"
"""The checksums of the files in a student's model folder; `sha256sum -c SHA256SUMS` compares them too."""
_MASK = "masked_spec_embed"
"""Stands for masked frames. Models that mask none lack it: nothing but masking uses it."""
_SHOWN = 5


class Loadable(Protocol):
    """A class of `transformers` that loads a model."""

    def from_pretrained(self, checkpoint: str | Path, **options: object) -> Any:
        """Load the checkpoint."""
        ...


def write_sums(folder: Path) -> None:
    """Write the checksum of each file in a model folder to `SHA256SUMS`, as `sha256sum` does."""
    lines = [f"{_sum_of(path)}  {path.name}\n" for path in sorted(folder.iterdir()) if path.name != SUMS]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def version(folder: Path) -> str | None:
    """16 hexadecimal digits that identify the files of a model folder; None if it has no `SHA256SUMS`."""
    path = folder / SUMS
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else None


def sum_faults(folder: Path) -> dict[str, str]:
    """The files that are not what `SHA256SUMS` of a model folder says, and why; none where it has no such file."""
    if not (folder / SUMS).is_file():
        return {}
    reasons = {}
    for line in (folder / SUMS).read_bytes().decode("utf-8", "replace").splitlines():
        wanted, _, name = line.partition("  ")
        path = folder / Path(name).name
        if not path.is_file():
            reasons[path.name] = "it is missing"
        elif _sum_of(path) != wanted:
            reasons[path.name] = "its bytes do not match its checksum"
    return reasons


def _sum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_config(checkpoint: str | Path, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """Read the `config.json` of a checkpoint; OSError or ValueError if there is none that `transformers` knows."""
    from transformers import AutoConfig

    local = Path(checkpoint).is_dir()
    try:
        config = AutoConfig.from_pretrained(checkpoint, local_files_only=local, trust_remote_code=trust_remote_code)
        _check_dropout(config.to_dict())
    except (OSError, ValueError):
        raise
    except Exception as error:  # any, of values that cannot be or are nested without end
        raise ValueError(" ".join(f"{type(error).__name__}: {error}".split())) from None
    return config


def _check_dropout(values: Mapping[object, object]) -> None:
    """ValueError if a dropout is not a probability: torch reports it in the forward pass, long after loading."""
    for name, value in values.items():
        if isinstance(value, dict):
            _check_dropout(value)
        elif "dropout" in str(name) and isinstance(value, (int, float)) and not 0 <= value <= 1:
            raise ValueError(f"`{name}` of its config.json is {value}, not a probability")


def load_model(
    model_class: Loadable,
    checkpoint: str | Path,
    *,
    new_head: bool = False,
    trust_remote_code: bool = False,
    **options: object,
) -> Any:
    """Load a model with every weight of a checkpoint, a folder or a name on the Hugging Face Hub.

    With `new_head` the weights of `HEADS` may be missing, too many or of another shape: the caller initialises the
    head. DataError if anything else does not fit, or a file is not that of `SHA256SUMS`; OSError, ValueError or
    SafetensorError if nothing can be read.
    """
    from safetensors import SafetensorError
    from transformers.utils import logging

    _check_sums(Path(checkpoint))
    logging.disable_progress_bar()
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model, info = model_class.from_pretrained(
            checkpoint,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            local_files_only=Path(checkpoint).is_dir(),
            trust_remote_code=trust_remote_code,
            **options,
        )
    except (OSError, ValueError, SafetensorError):
        raise
    except Exception as error:  # any, of a file that others have written
        raise ValueError(first_line(error)) from None
    finally:
        logging.set_verbosity(before)
    missing, unexpected = (
        {name for name in info[key] if not name.endswith(_MASK)} for key in ("missing_keys", "unexpected_keys")
    )
    shapes = {name: f"`{name}` is {(*is_,)}, not {(*wanted,)}" for name, is_, wanted in info["mismatched_keys"]}
    if new_head:
        missing, unexpected = _outside_heads(missing), _outside_heads(unexpected)
        shapes = {name: shapes[name] for name in _outside_heads(shapes)}
    reasons = [
        *(["missing: " + _listed(f"`{name}`" for name in missing)] if missing else []),
        *(["unknown: " + _listed(f"`{name}`" for name in unexpected)] if unexpected else []),
        *(["of another shape: " + _listed(shapes.values())] if shapes else []),
    ]
    if reasons:
        raise DataError(
            f"the weights of `{checkpoint}` do not fit a {type(model).__name__}",
            code="model-unloadable",
            why="; ".join(reasons),
            fix="use the folder as it was saved: config.json and all weight files belong together",
        )
    return model


def _check_sums(folder: Path) -> None:
    for name, reason in sum_faults(folder).items():
        raise DataError(
            f"`{folder / name}` is broken",
            code="checkpoint-broken",
            why=reason,
            fix=f"restore it from a copy; or remove `{SUMS}` if it was changed on purpose",
        )


@contextlib.contextmanager
def loading_weights(checkpoint: str) -> Iterator[None]:
    """Load weights within it: what `transformers` raises becomes a DataError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"the weights of `{checkpoint}` cannot be loaded",
            code="model-unloadable",
            why=first_line(error),
            fix="give a folder with config.json and model.safetensors, or a name on the Hugging Face Hub",
        ) from None


def _outside_heads(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] not in HEADS}


def _listed(parts: Iterable[str]) -> str:
    names = sorted(parts)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
