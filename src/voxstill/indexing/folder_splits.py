"""Splits by name: what lies in a folder named `test` or `dev` is held out, wherever in the source the folder stands.

So Hugging Face lays out audio folders, LibriSpeech its parts (`dev-clean`), and Kaldi its data directories.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from operator import eq

from voxstill.core.monitor import log
from voxstill.core.records import Split
from voxstill.indexing.formats.entry import SourceEntry, split_named
from voxstill.indexing.formats.webdataset import AUDIO, file_name
from voxstill.storage.redaction import redact_uri
from voxstill.storage.uri import is_local, local_path, split_range

_FOLDERS_SHOWN = 5
_DECIDES = "a column `split` in a manifest overrides this"


def with_split(entry: SourceEntry, split: Split | None) -> SourceEntry:
    """The entry with this split, where it has none."""
    is_known = split is None or entry.split is not None or entry.implied_split is not None
    return entry if is_known else replace(entry, implied_split=split)


def is_held_out(split: Split | None) -> bool:
    """Whether it must not be used in training."""
    return split in ("dev", "test")


class FolderSplits:
    """The splits that folders of one source are named after; `folders_in` lists the folders in one of them.

    The outermost name counts. One of training counts beside a folder that is held out, else nothing would be held out.
    Of audio that does not lie below `root`, as a manifest may name it, the folders count from where both part. `split`
    is what the source is named after.
    """

    def __init__(self, root: str, folders_in: Callable[[str], Iterable[str]], split: Split | None = None) -> None:
        self._split = split
        self._root = f"{root.rstrip('/')}/"
        self._folders_in = folders_in
        self._beside: dict[str, set[Split | None]] = {}
        """The splits of the folders in a folder, where one of them is named after a split."""
        self._of_folder = lru_cache(maxsize=16)(self._split_of)  # files of one folder follow one another
        self._held_out: dict[str, Split] = {}

    def apply(self, entry: SourceEntry, file: str) -> SourceEntry:
        """The entry with the split of its folder, or of the file that it was read from: held out where one of them is.

        Audio may lie apart from its manifest. Where it lies outside of the source, that of the manifest comes first.
        """
        audio = _place(entry)
        by_file, by_audio = self.of(file) or self._split, self.of(audio)
        is_audio_first = by_file is None or (is_held_out(by_audio) and audio.startswith(self._root))
        return with_split(entry, by_audio if is_audio_first else by_file)

    def of(self, address: str) -> Split | None:
        """The split of what lies at an address; None if no folder says one."""
        return self._of_folder(address.rpartition("/")[0])

    def log(self) -> None:
        """Name the folders that are held out; loudly where none for training lies beside them."""
        named = [f"`{redact_uri(folder)}` is {split}" for folder, split in self._held_out.items()]
        if len(named) > _FOLDERS_SHOWN:
            named[_FOLDERS_SHOWN:] = [f"{len(named) - _FOLDERS_SHOWN} more"]
        is_alone = any("train" not in self._beside[folder.rpartition("/")[0]] for folder in self._held_out)
        if is_alone:
            log.warning("index: folders are held out by their names: %s; %s", ", ".join(named), _DECIDES)
        elif named:
            log.info("index: folders are named after splits: %s", ", ".join(named))

    def _split_of(self, folder: str) -> Split | None:
        if f"{folder}/".startswith(self._root):
            return self._named(folder.removeprefix(self._root[:-1]).strip("/").split("/"), self._root)
        names, of_root = folder.split("/"), self._root.split("/")
        # a bucket or host, or a folder such as /dev, is not a split
        num_common = max(sum(1 for _ in takewhile(bool, map(eq, names, of_root))), 3 if "://" in folder else 2)
        return self._named(names[num_common:], f"{'/'.join(names[:num_common])}/")

    def _named(self, names: Sequence[str], root: str) -> Split | None:
        """The split that the folders of these names, each in the one before it, are named after."""
        is_source = root == self._root
        for depth, name in enumerate(names):
            split = split_named(name)
            if split is None:
                continue
            inside = "/".join(names[:depth])
            parent = inside if is_source else f"{root}{inside}".rstrip("/")
            if parent not in self._beside:
                self._beside[parent] = set(map(split_named, self._folders_in(root + inside))) if is_source else set()
            if is_held_out(split):
                self._held_out[f"{parent}/{name}" if parent else name] = split
                return split
            if any(map(is_held_out, self._beside[parent])):
                return split
        return None


def _place(entry: SourceEntry) -> str:
    """Where audio lies; a member of a tar lies where the tar would be unpacked."""
    address = entry.origin or split_range(entry.uri)[0]
    return address if entry.sample is None else f"{address.rpartition('/')[0]}/{entry.sample}"


def splits_of_addresses(uris: Sequence[str]) -> Mapping[str, Split]:
    """The splits that addresses of sources are named after, such as `corpus/test`, `dev.jsonl` or `test/data.list`.

    A file's own name comes first, in which `_` parts words, then the outermost folder behind what all addresses have in
    common. A name of training counts beside one that is held out. One address alone is not a split, with a warning.
    """
    paths = [file_name(os.path.abspath(local_path(uri).expanduser()) if is_local(uri) else uri) for uri in uris]
    names = [path.rstrip("/").split("/") for path in paths]
    num_common = sum(1 for _ in takewhile(lambda same: len({*same}) == 1, zip(*names, strict=False)))
    splits: dict[str, Split] = {}
    for uri, path, (*folders, name) in zip(uris, paths, names, strict=True):
        words = name.split("_") if len(uris) > 1 and name.rpartition(".")[2] not in AUDIO else ()
        # a bucket or host, or a folder such as /dev, is not a split
        own_folders = folders[max(num_common, 3 if "://" in path else 2) :]
        for word in (name, *words, *own_folders):
            if (split := split_named(word)) is not None:
                splits.setdefault(uri, split)
    if not any(map(is_held_out, splits.values())):
        return {}
    if len(uris) > 1:
        named = ", ".join(f"`{redact_uri(uri)}` is {split}" for uri, split in splits.items())
        if "train" in splits.values():
            log.info("index: sources are named after splits: %s", named)
        else:
            log.warning("index: sources are held out by their names: %s; %s", named, _DECIDES)
        return splits
    if paths[0].rpartition(".")[2] not in AUDIO:
        log.warning(
            "index: `%s` is named after a split that is held out, but it is the only source: `source.dev_share` and "
            "`source.test_share` of it are held out; %s",
            redact_uri(uris[0]),
            _DECIDES,
        )
    return {}
