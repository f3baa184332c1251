"""`voxstill doctor` sees by itself what it is given: nothing, a work folder, or an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from voxstill.core.config import Config
from voxstill.pipeline.doctor import machine, places, software
from voxstill.pipeline.doctor.checks import DoctorResult, Probe, result, run
from voxstill.storage.redaction import redact_uri
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path

_LIMIT_S = 1.9
_CORPUS_S = 900.0


def doctor(where: str | None, cfg: Config) -> DoctorResult:
    """Check the machine, or a work folder, or an experiment, and say what is wrong, the worst first.

    A checkpoint is its experiment. DataError if a folder is neither.
    """
    if where is None:
        return check_machine(cfg)
    if is_local(where):
        path = local_path(where)
        folder = RunDir.of_checkpoint(path) or RunDir(path)
        if folder.config.is_file():
            from voxstill.pipeline.doctor import training_run

            return training_run.check_run(folder)
    return check_corpus(where, cfg)


def check_machine(cfg: Config) -> DoctorResult:
    """What the machine gives to the trainings and jobs of a configuration; within three seconds."""
    is_remote = not is_local(cfg.work)
    probes = [
        Probe("packages", software.packages, _LIMIT_S, "the environment of Python"),
        Probe("memory", machine.memory, _LIMIT_S),
        Probe("shared memory", machine.shared_memory, _LIMIT_S, "/dev/shm"),
        *_places(cfg),
        Probe("GPU", software.gpus, _LIMIT_S, "the driver of the GPUs"),
        Probe("ports", partial(places.ports, _ports(cfg), cfg.monitor.host), _LIMIT_S),
        Probe("open files", machine.open_files, _LIMIT_S),
        Probe("clock", partial(machine.clock, is_remote=is_remote), _LIMIT_S),
        Probe("cores", machine.cores, _LIMIT_S),
        Probe("decoding", places.decoding, _LIMIT_S, "the decoder"),
        Probe("pressure", machine.pressure, _LIMIT_S),
    ]
    return result(run(probes))


def check_corpus(where: str, cfg: Config) -> DoctorResult:
    """What the tables of a work folder, and a sample of its audio, say of a corpus."""
    from voxstill.pipeline.doctor import corpus

    work = Store(where)
    places_of_work = [
        Probe("disk", partial(places.disk, local_path(where)), _LIMIT_S, f"`{where}`", "storage")
        if is_local(where)
        else _bucket(where)
    ]
    # the sample has a limit of its own, and the tables of a large corpus take their time
    probes = [Probe("corpus", partial(corpus.checks, work, cfg), _CORPUS_S, f"`{redact_uri(where)}`", "corpus")]
    if not any(work.list("utterances")):
        return result(corpus.checks(work, cfg))  # which raises: it is not a work folder
    return result(run([*probes, *places_of_work]))


def _places(cfg: Config) -> Sequence[Probe]:
    """The folders and disks that a configuration writes to, and its bucket."""
    names = {"train.root": Path(cfg.train.root)}
    if cfg.cache.folder:
        names["cache.folder"] = Path(cfg.cache.folder).expanduser()
    if is_local(cfg.work):
        names = {"work": local_path(cfg.work), **names}
    disks = [
        Probe("disk", partial(places.disk, folder), _LIMIT_S, f"`{folder}`", "storage")
        for folder in places.folders(names.values())
    ]
    probes = [Probe("folders", partial(places.writable, names), _LIMIT_S, "a file system", "storage"), *disks]
    return probes if is_local(cfg.work) else [_bucket(cfg.work), *probes]


def _bucket(root: str) -> Probe:
    return Probe("bucket", partial(places.bucket, root), places.BUCKET_S, f"`{redact_uri(root)}`", "storage")


def _ports(cfg: Config) -> dict[int, str]:
    return {cfg.monitor.port: "monitor.port"} if cfg.monitor.port else {}
