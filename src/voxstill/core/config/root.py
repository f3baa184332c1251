"""The whole configuration: every section, and what follows from several of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from annotated_types import Len
from pydantic import (
    BeforeValidator,
    Discriminator,
    ModelWrapValidatorHandler,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from voxstill.core.config.audio import Audio
from voxstill.core.config.corpus import Cache, Demo, Filter, Segment, Shard, Source
from voxstill.core.config.diarize import Diarize
from voxstill.core.config.engine import Engine, Monitor
from voxstill.core.config.evaluation import Decode, Evaluate
from voxstill.core.config.explain import in_words, renamed
from voxstill.core.config.section import NAMED_SECTIONS, Section, option
from voxstill.core.config.serve import Serve
from voxstill.core.config.teacher import Teacher
from voxstill.core.config.training import (
    TRAIN_PRESETS,
    Augment,
    Normalization,
    Optimizer,
    Plan,
    Pretrain,
    Student,
    Train,
)
from voxstill.core.errors import ConfigError

_LEVEL_GAIN_DB = 12.0
"""`augment.gain_db` where it is not set, with a `student.normalization` that leaves differences in level."""
_WINDOW = 2_048
"""Utterances of a window for each batch of a step: the batches of a step then are of nearly the same length."""

_NO_STREAM = {
    "kind": "a streaming student is an RNN-T, which emits each token as soon as it is spoken",
    "normalization": "it is computed from the whole utterance",
    "task": "a streaming student only does recognition",
}
"""Why an option of the student does not go with streaming."""


def _as_number(seed: object) -> object:
    """A seed that is as long as a recipe was read as text."""
    return int(seed) if isinstance(seed, str) and seed.isdecimal() else seed


class Config(Section):
    """Everything a run needs; everything but `source.uri` has a default.

    ConfigError where an option is unknown or a value is out of range.

    >>> voxstill.Config(work="work/digits").train.steps is None
    True
    """

    work: str = option("work/default", pace=True)
    """Folder (or bucket prefix) of the tables and shards."""
    seed: Annotated[int, BeforeValidator(_as_number)] = option(0, ge=0)
    """All chance comes from here."""
    rounds: int = option(1, unit="rounds", ge=1, pace=True)
    """`voxstill run` trains so many students, each from the labels that the teacher and the student before it agree
    on."""
    source: Annotated[
        Annotated[Source, Tag("list[1]")]
        | Annotated[list[Source], Len(1), Tag("list[Source]")],  # errors leave tags out
        Discriminator(lambda source: "list[Source]" if isinstance(source, list) else "list[1]"),
    ] = Source()
    cache: Cache = Cache()
    audio: Audio = Audio()
    segment: Segment = Segment()
    diarize: Diarize = Diarize()
    engine: Engine = Engine()
    monitor: Monitor = Monitor()
    teacher: Teacher = Teacher()
    filter: Filter = Filter()
    shard: Shard = Shard()
    student: Student = Student()
    plan: Plan = Plan()
    augment: Augment = Augment()
    train: Train = Train()
    decode: Decode = Decode()
    pretrain: Pretrain = Pretrain()
    evaluate: Evaluate = Evaluate()
    serve: Serve = Serve()
    demo: Demo = Demo()

    @field_validator("source", mode="before")
    @classmethod
    def _one_source_is_no_list(cls, source: object) -> object:
        return source[0] if isinstance(source, list) and len(source) == 1 else source

    @field_validator("work")
    @classmethod
    def _work_is_named(cls, work: str) -> str:
        if not work.strip():
            raise ValueError("it is empty: give a folder, or the prefix of a bucket")
        return work

    @model_validator(mode="wrap")
    @classmethod
    def _errors_are_in_words(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Former names of options are known, and what is wrong is a ConfigError, however the configuration is made."""
        try:
            return handler(renamed(cls, data) if isinstance(data, Mapping) else data)
        except ValidationError as error:
            raise in_words(cls, error) from None

    @model_validator(mode="before")
    @classmethod
    def _a_name_is_a_section(cls, data: object) -> object:
        """`engine: inline` means `engine: {name: inline}`; the same for the teacher and for diarization."""
        if isinstance(data, dict):
            return {k: {"name": v} if k in NAMED_SECTIONS and isinstance(v, str) else v for k, v in data.items()}
        return data

    @model_validator(mode="before")
    @classmethod
    def _a_task_has_settings_of_its_own(cls, data: object) -> object:
        """`train.preset` gives way to what it stands for, and a speaker keeps the voice: what is hashed, kept and shown
        is that."""
        if not isinstance(data, dict):
            return data
        sections = {name: _set_options(data.get(name)) for name in ("student", "plan", "augment", "train")}
        if any(section is None for section in sections.values()):  # of the wrong type, which validation reports
            return data
        tree = {name: dict(section) for name, section in sections.items() if section is not None}
        task = str(tree["student"].get("task", "recognition"))
        preset = TRAIN_PRESETS.get(str(tree["train"].get("preset")), {}).get(task, {})
        for name, settings in preset.items():
            ends = {"steps", "epochs", "max_minutes"} & {key for key, value in tree[name].items() if value is not None}
            tree[name] = {key: value for key, value in settings.items() if key != "epochs" or not ends} | tree[name]
        if preset:
            del tree["train"]["preset"]
        if task == "speakers":
            tree["augment"] = {"tempo": 0.0, "vtlp": 0.0} | tree["augment"]
        return {**data, **{name: section for name, section in tree.items() if section}}

    @model_validator(mode="after")
    def _a_header_states_no_level(self) -> Self:
        """Levels are measured in samples: `segment.measure: header` reads none."""
        if self.segment.measure == "header" and self.audio.normalize != "none":
            raise ConfigError(
                f"`audio.normalize` is `{self.audio.normalize}` and `segment.measure` is `header`",
                code="option-conflict",
                why="the gain is computed from samples, and headers alone are read",
                fix="set `segment.measure: decode`",
            )
        return self

    @model_validator(mode="after")
    def _a_header_has_no_voices(self) -> Self:
        """Who speaks is heard in samples."""
        if self.segment.measure == "header" and self.diarize.name is not None:
            raise ConfigError(
                f"`diarize.name` is `{self.diarize.name}` and `segment.measure` is `header`",
                code="option-conflict",
                why="turns are found in samples, and headers alone are read",
                fix="set `segment.measure: decode`",
            )
        return self

    @model_validator(mode="after")
    def _what_is_tuned_is_there(self) -> Self:
        """`decode.tune` is of the weights of a language model."""
        if self.decode.tune and self.decode.lm is None and self.evaluate.lm_order is None:
            raise ConfigError(
                "`decode.tune` has nothing to tune",
                code="option-unused",
                why="it tunes the weights of a language model, and none is set",
                fix="set `decode.lm` and `decode.beam`; for `voxstill run`, `evaluate.lm_order` is enough",
            )
        return self

    @model_validator(mode="after")
    def _a_stream_has_no_end(self) -> Self:
        """A streaming student is a transducer, and nothing of an utterance is known before its end."""
        if self.student.streaming:
            for name, only in (("kind", ["rnnt"]), ("normalization", ["none", None]), ("task", ["recognition"])):
                if (value := getattr(self.student, name)) not in only:
                    raise ConfigError(
                        f"`student.{name}: {value}` cannot be combined with `student.streaming`",
                        code="option-conflict",
                        why=_NO_STREAM[name],
                        fix=f"set `student.{name}: {only[0]}`",
                    )
        return self

    @model_validator(mode="after")
    def _every_device_has_a_batch(self) -> Self:
        """Without `plan.batches_per_step` a step has a batch for each device."""
        if "batches_per_step" not in self.plan.model_fields_set and self.train.devices > 1:
            plan = self.plan.model_copy(update={"batches_per_step": self.train.devices})
            plan.model_fields_set.discard("batches_per_step")  # it is not set, but follows the devices
            self.__dict__["plan"] = plan
        return self


def default_window(plan: Plan) -> int:
    """What `plan.window` is in a new experiment: what is set, or enough for the batches of a step."""
    return plan.window if "window" in plan.model_fields_set else max(plan.window, _WINDOW * plan.batches_per_step)


def with_choices(config: Config, normalization: Normalization | None, optimizer: Optimizer, window: int) -> Config:
    """The configuration with this `student.normalization`, `train.optimizer` and `plan.window`, and with what
    `augment.gain_db` is by default beside them."""
    student = config.student.model_copy(update={"normalization": normalization})
    train = config.train.model_copy(update={"optimizer": optimizer})
    augment = config.augment
    is_new = student.checkpoint is None and student.task == "recognition"
    if is_new and normalization in ("level", "none") and "gain_db" not in augment.model_fields_set:
        augment = augment.model_copy(update={"gain_db": _LEVEL_GAIN_DB})
    plan = config.plan.model_copy(update={"window": window})
    return config.model_copy(update={"student": student, "train": train, "augment": augment, "plan": plan})


def _set_options(section: object) -> Mapping[str, object] | None:
    """The options of a section that were set; None where it is no section."""
    if isinstance(section, Section):
        return section.model_dump(exclude_unset=True)
    return {} if section is None else section if isinstance(section, dict) else None
