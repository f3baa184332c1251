"""What lies outside the process: disks, ports and buckets, and how fast audio is decoded here."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from voxstill.audio import codec
from voxstill.core import cpu_time, pcm
from voxstill.pipeline.doctor import disk_probe
from voxstill.pipeline.doctor.checks import Check
from voxstill.pipeline.doctor.machine import GIB
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store

DISK_S, BUCKET_S = 1.8, 1.9
"""A disk, or a bucket, that takes longer hangs."""
_FULL, _NEARLY_FULL = GIB, 5 * GIB
_SLOW_BYTES_PER_S = 20e6
_SLOW_SEEK_S = 0.05
_FEW_FILES = 1000
_SLOW_REQUEST_S = 0.5
_SLOW_DECODING = 500.0
"""Times real time of FLAC on one core; usual are thousands."""
_NOISE_S = 30


def disk(folder: Path) -> list[Check]:
    """Free space and speed of the file system of a folder; a folder that does not exist yet is that of its parent."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    command = [sys.executable, "-I", "-S", disk_probe.__file__, str(there)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=DISK_S)
    except subprocess.TimeoutExpired:
        is_starved = cpu_time.of_process(process.pid).core_wait_s > DISK_S / 4
        process.kill()  # and not waited for: it may wait for the disk for good
        if is_starved:
            text = f"`{there}`: not measured, as no core was free within {DISK_S:g} s"
            return [Check(name="disk", state="ok", found=text, part="storage")]
        text = f"`{there}` has not answered within {DISK_S:g} s"
        fix = "check the disk or the network file system, and `dmesg`"
        return [Check(name="disk", state="fail", found=text, fix=fix, part="storage")]
    if process.returncode:
        text = f"`{there}`: {(errors.strip() or 'the probe has died').splitlines()[-1]}"
        return [Check(name="disk", state="fail", found=text, fix="check the permissions", part="storage")]
    return [_disk(there, json.loads(output))]


def _disk(folder: Path, figures: Mapping[str, float | str | None]) -> Check:
    """Judge what the probe measured."""
    free, total = float(figures["free_bytes"] or 0), float(figures["total_bytes"] or 0)
    text = f"`{folder}`: {free / GIB:.1f} of {total / GIB:.0f} GiB free"
    free_files = figures["free_files"]
    room = "free some space, or point `work`, `train.root` and `cache.folder` elsewhere"
    if "error" in figures and figures["error"] != os.strerror(errno.ENOSPC):
        text += f"; nothing can be written: {figures['error']}"
        return Check(name="disk", state="fail", found=text, fix="check the permissions of the folder", part="storage")
    if "error" not in figures:
        write, read = (float(figures[f"{name}_bytes_per_s"] or 0) for name in ("write", "read"))
        seek_s = float(figures["seek_s"] or 0)
        text += (
            f"; writes {write / 1e6:,.0f} and reads {read / 1e6:,.0f} MB/s, a small read takes {1e3 * seek_s:.1f} ms"
        )
    if "error" in figures or free < _FULL or (free_files is not None and float(free_files) < _FEW_FILES):
        text += f", with space for {free_files} more files" if free_files is not None and free >= _FULL else ""
        return Check(name="disk", state="fail", found=text, fix=room, part="storage")
    if free < _NEARLY_FULL:
        return Check(name="disk", state="warn", found=text, fix=room, part="storage")
    if min(write, read) < _SLOW_BYTES_PER_S or seek_s > _SLOW_SEEK_S:
        fix = "copy the shards to a faster disk (`work`), or fetch tars to one (`cache.folder`)"
        return Check(name="disk", state="warn", found=text, fix=fix, part="storage")
    return Check(name="disk", state="ok", found=text, part="storage")


def folders(names: Iterable[Path]) -> list[Path]:
    """The folders that lie on different file systems, the first of each."""
    devices: dict[int, Path] = {}
    for name in names:
        for path in (name.absolute(), *name.absolute().parents):
            with contextlib.suppress(OSError):
                devices.setdefault(path.stat().st_dev, name)
                break
    return list(devices.values())


def writable(folders: Mapping[str, Path]) -> list[Check]:
    """Whether each folder, by the option that names it, can be written to, or made where it does not exist yet."""
    troubles = []
    for option, folder in folders.items():
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
        if not there.is_dir():
            troubles.append(f"`{option}`: `{there}` is not a folder")
        elif not os.access(there, os.W_OK | os.X_OK):
            troubles.append(f"`{option}`: no permission to write to `{there}`")
    if troubles:
        fix = "name another folder there, or change the permissions"
        return [Check(name="folders", state="fail", found="; ".join(troubles), fix=fix, part="storage")]
    text = ", ".join(f"`{option}`" for option in folders) + " can be written to"
    return [Check(name="folders", state="ok", found=text, part="storage")]


def decoding() -> list[Check]:
    """How fast FLAC, what shards hold, is decoded in this process."""
    noise_T = (np.random.default_rng(0).standard_normal(pcm.ms_to_samples(1000 * _NOISE_S)) * 3000).astype(np.int16)
    data = codec.encode(noise_T, "flac")
    out_T = np.empty_like(noise_T)
    codec.decode_stored(data, out_T)  # loads the library
    wall_s, cpu_s = time.perf_counter(), time.thread_time()
    codec.decode_stored(data, out_T)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.thread_time() - cpu_s
    speed = _NOISE_S / max(cpu_s, 1e-9)
    text = f"FLAC at {speed:,.0f} times real time on a core"
    if wall_s > 2 * cpu_s + 0.01:
        text += f", {_NOISE_S / wall_s:,.0f} with the wait for one"
    if speed >= _SLOW_DECODING:
        return [Check(name="decoding", state="ok", found=text)]
    fix = "the core is slow, throttled or emulated: use another machine"
    return [Check(name="decoding", state="warn", found=text, fix=fix)]


def ports(wanted: Mapping[int, str], host: str) -> list[Check]:
    """Whether the ports that options name are free; `wanted` has the option of each."""
    taken = {port: option for port, option in wanted.items() if _is_taken(host, port)}
    if not taken:
        free = ", ".join(map(str, wanted)) or "none is set"
        return [Check(name="ports", state="ok", found=f"free: {free}" if wanted else free)]
    texts = [f"{port} of `{option}` is in use{_user_of(port)}" for port, option in taken.items()]
    fix = f"choose another `{next(iter(taken.values()))}`, or end the program that listens there"
    return [Check(name="ports", state="warn", found="; ".join(texts), fix=fix)]


def _is_taken(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _user_of(port: int) -> str:
    """The process that listens at a port, where it may be seen."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for folder in Path("/proc").glob("[0-9]*/fd") if inodes else ():
        with contextlib.suppress(OSError):
            if any(os.readlink(link) in inodes for link in folder.iterdir()):
                return f" by process {folder.parent.name}"
    return ""


def bucket(root: str) -> list[Check]:
    """Write, read and delete a small object below a root in a bucket, and say how long that takes."""
    store, key, data = Store(root), f".doctor/{secrets.token_hex(8)}", secrets.token_bytes(1024)
    start = time.perf_counter()
    store.create(key, data)
    written_s = time.perf_counter() - start
    try:
        is_same = store.read(key) == data
        read_s = time.perf_counter() - start - written_s
    finally:
        store.delete(key)
    where = redact_uri(root)
    text = f"`{where}`: a small object is written in {1e3 * written_s:.0f} ms and read in {1e3 * read_s:.0f} ms"
    if not is_same:
        text, fix = f"`{where}` returns other bytes than were written", "check for a proxy or a cache in front of it"
        return [Check(name="bucket", state="fail", found=text, fix=fix, part="storage")]
    if max(written_s, read_s) > _SLOW_REQUEST_S:
        fix = "work closer to the bucket, or over a faster network; `cache.folder` prefetches"
        return [Check(name="bucket", state="warn", found=text, fix=fix, part="storage")]
    return [Check(name="bucket", state="ok", found=text, part="storage")]
