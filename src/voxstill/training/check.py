"""Whether a training can start: errors of its configuration are reported before anything heavy is done."""

from __future__ import annotations

from voxstill.core import world
from voxstill.core.config import Config, Decode
from voxstill.core.errors import ConfigError
from voxstill.text import jsgf
from voxstill.training import changes, parallel, upload
from voxstill.training.budget import check_schedule


def check(cfg: Config) -> None:
    """Raise ConfigError if the training would have no end, cannot be what `seed_mode` promises, or be judged.

    StorageError if nothing can be brought to `train.upload`; DataError if the base of `train.export_changes`
    cannot be fetched; where `decode.lm` is not a language model, the error is that of `lm.check`.
    """
    if cfg.train.upload:
        upload.check(cfg.train.upload)
    check_schedule(cfg.train)
    _check_student(cfg)
    _check_distillation(cfg)
    _check_exports(cfg)
    _check_decoding(cfg)
    ranks = world.ranks()
    cfg, num = (parallel.with_ranks(ranks, cfg), ranks.num) if ranks else (cfg, cfg.train.devices)
    if cfg.plan.batches_per_step % num:
        source = "`train.devices` is" if ranks is None else f"{ranks.launcher} has started"
        raise ConfigError(
            f"`plan.batches_per_step` is {cfg.plan.batches_per_step} and {source} {num}",
            code="ranks-mismatch",
            why="the batches of a step are divided evenly among the devices",
            fix=f"set `plan.batches_per_step` to a multiple of {num}",
        )


def _check_student(cfg: Config) -> None:
    """Raise ConfigError if options of the student contradict one another."""
    for option, needs in (("units", cfg.student.units == "checkpoint"), ("kind", cfg.student.kind == "seq2seq")):
        if needs and cfg.student.checkpoint is None:
            raise ConfigError(
                f"`student.{option}: {getattr(cfg.student, option)}` has no checkpoint to start from",
                code="option-unused",
                why="`student.checkpoint` is not set",
                fix=f"set it, or another `student.{option}`",
            )
    layers = {"encoder_layers": cfg.student.encoder_layers, "decoder_layers": cfg.student.decoder_layers}
    for option in (option for option, num in layers.items() if num is not None and cfg.student.kind != "seq2seq"):
        raise ConfigError(
            f"`student.{option}` has no effect",
            code="option-unused",
            why="only a Whisper (`student.kind: seq2seq`) can use a part of the layers of its checkpoint",
            fix="leave it out, or start from a smaller checkpoint",
        )
    if cfg.train.class_weights and cfg.student.task == "recognition":
        raise ConfigError(
            "`train.class_weights` has no effect",
            code="option-unused",
            why="`student.task: recognition` learns words, not classes",
            fix="leave it out; `train.dataset_weights` and `train.dialect_weights` weight utterances",
        )
    is_ctc = cfg.student.task == "recognition" and cfg.student.kind == "ctc"
    if cfg.train.consistency and not is_ctc:
        raise ConfigError(
            "`train.consistency` has no use",
            code="option-unused",
            why="it compares the frames of a CTC student",
            fix="leave it out, or set `student.kind: ctc` and `student.task: recognition`",
        )
    if cfg.train.label_smoothing and cfg.student.task != "recognition":
        raise ConfigError(
            "`train.label_smoothing` has no use",
            code="option-unused",
            why=f"`student.task: {cfg.student.task}` learns no words",
            fix="leave it out",
        )
    if cfg.student.freeze_layers and cfg.student.checkpoint is None:
        raise ConfigError(
            f"`student.freeze_layers: {cfg.student.freeze_layers:g}` has no pre-trained layers to freeze",
            code="option-unused",
            why="the layers of a new student are untrained, and would remain so",
            fix="set `student.checkpoint`, or `student.freeze_layers: 0`, even with `train.preset`",
        )
    if cfg.train.unfreeze_share and not cfg.student.freeze_layers:
        raise ConfigError(
            f"`train.unfreeze_share: {cfg.train.unfreeze_share:g}` has nothing to unfreeze",
            code="option-unused",
            why="`student.freeze_layers` is 0: no layer is frozen",
            fix="set `student.freeze_layers` to a share of the layers, or leave `train.unfreeze_share` out",
        )


def _check_decoding(cfg: Config) -> None:
    """Raise ConfigError if options of decoding have no use; DataError if a file that it reads is none."""
    if cfg.decode.tune and cfg.student.kind in ("rnnt", "tdt"):
        raise ConfigError(
            "`decode.tune` has no effect",
            code="option-unused",
            why=f"`student.kind: {cfg.student.kind}`: weights are only tuned for CTC students",
            fix="leave it out; weights can be tried manually with `voxstill evaluate EXP --on dev`",
        )
    for name in cfg.decode.ctc_only if cfg.student.kind in ("rnnt", "tdt") else ():
        raise ConfigError(
            f"`decode.{name}` has no effect",
            code="option-unused",
            why=f"`student.kind: {cfg.student.kind}`, and this option is for CTC students",
            fix="leave it out, or set `student.kind: ctc`",
        )
    if cfg.decode.chunk_ms is not None and cfg.student.checkpoint is None and not cfg.student.streaming:
        raise ConfigError(
            "`decode.chunk_ms` has no effect",
            code="option-unused",
            why="the student processes whole utterances",
            fix="leave it out, or set `student.streaming: true` and `student.kind: rnnt`",
        )
    helped = {"the section `decode`": cfg.decode != Decode(), "`evaluate.lm_order`": cfg.evaluate.lm_order is not None}
    for name in (name for name, is_set in helped.items() if is_set and cfg.student.kind == "seq2seq"):
        raise ConfigError(
            f"{name} has no effect",
            code="option-unused",
            why="a `seq2seq` student decodes by itself",
            fix="leave it out",
        )
    if cfg.decode.lm is not None:
        from voxstill.text import lm  # compiled code: training does without

        lm.check(cfg.decode.lm)  # otherwise the evaluation would report it at the end
    if cfg.decode.grammar is not None:
        jsgf.read(cfg.decode.grammar)


def _check_distillation(cfg: Config) -> None:
    """Raise ConfigError if nothing can be learnt of the teacher."""
    distill = cfg.train.distill
    if distill.checkpoint is not None and cfg.student.task != "recognition":
        raise ConfigError(
            "`train.distill` has no effect",
            code="option-unused",
            why=f"`student.task: {cfg.student.task}` does not learn words",
            fix="leave it out",
        )
    if distill.checkpoint is not None and not distill.weight and not distill.layers:
        raise ConfigError(
            "`train.distill` has no effect",
            code="option-unused",
            why="`train.distill.weight` is 0, and `train.distill.layers` has no layers",
            fix="set one of them, or leave `train.distill` out",
        )


def _check_exports(cfg: Config) -> None:
    """Raise ConfigError if changed weights have no base, DataError if that cannot be fetched."""
    if cfg.train.export_changes:
        if cfg.student.checkpoint is None:
            raise ConfigError(
                "`train.export_changes` has nothing to compare with",
                code="option-unused",
                why="`student.checkpoint` is not set: all weights of a new student are new",
                fix="leave it out, or start from a checkpoint",
            )
        changes.base_folder(cfg.student.checkpoint)
