"""Where the weights of the engine `embedded` lie: a file in the wheel of Resemblyzer, which is never imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from voxstill.core.errors import ConfigError

_PACKAGE, _VERSION, _FILE = "resemblyzer", "0.1.4", "resemblyzer/pretrained.pt"
INSTALL = f"pip install --no-deps {_PACKAGE}=={_VERSION}"
"""Its dependencies ask for builds from source and are not needed."""


def path() -> Path:
    """Where the file of weights lies; ConfigError with the command that installs it where it is missing."""
    try:
        package = distribution(_PACKAGE)
    except PackageNotFoundError:
        raise _missing(f"the package `{_PACKAGE}`, which contains it, is not installed") from None
    file = Path(str(package.locate_file(_FILE)))
    if not file.is_file():
        raise _missing(f"`{_PACKAGE}` {package.version} is installed without `{_FILE}`")
    return file


def _missing(why: str) -> ConfigError:
    return ConfigError(
        "the weights of the diarization engine `embedded` are missing", code="missing-package", why=why, fix=INSTALL
    )
