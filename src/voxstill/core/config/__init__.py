"""The configuration: sections of options, and reading them from YAML, environment and command line."""

from voxstill.core.config.argument import takes_config
from voxstill.core.config.audio import Audio
from voxstill.core.config.corpus import Cache, Demo, Filter, Segment, Shard, Source, sources_of
from voxstill.core.config.diarize import Diarize
from voxstill.core.config.engine import Engine, Monitor
from voxstill.core.config.evaluation import Decode, Evaluate
from voxstill.core.config.explain import Option, suggestion, validated
from voxstill.core.config.loading import (
    ENVIRONMENT_PREFIX,
    changed,
    current_name,
    dump,
    load,
    load_snapshot,
    options,
    options_in_snapshot,
    template,
    tree,
)
from voxstill.core.config.root import Config, default_window, with_choices
from voxstill.core.config.section import Section, differences, first_defaults, former_names, identity, is_pace, option
from voxstill.core.config.serve import Serve
from voxstill.core.config.teacher import TEACHER_PRESETS, Teacher
from voxstill.core.config.training import (
    CHUNKS_MS,
    DEFAULT_CHUNK_MS,
    TRAIN_PRESETS,
    Augment,
    Distill,
    Normalization,
    Optimizer,
    Plan,
    Pretrain,
    Student,
    Train,
    TrainingCorpus,
    lookahead,
)

__all__ = [
    "CHUNKS_MS",
    "DEFAULT_CHUNK_MS",
    "ENVIRONMENT_PREFIX",
    "TEACHER_PRESETS",
    "TRAIN_PRESETS",
    "Audio",
    "Augment",
    "Cache",
    "Config",
    "Decode",
    "Demo",
    "Diarize",
    "Distill",
    "Engine",
    "Evaluate",
    "Filter",
    "Monitor",
    "Normalization",
    "Optimizer",
    "Option",
    "Plan",
    "Pretrain",
    "Section",
    "Segment",
    "Serve",
    "Shard",
    "Source",
    "Student",
    "Teacher",
    "Train",
    "TrainingCorpus",
    "changed",
    "current_name",
    "default_window",
    "differences",
    "dump",
    "first_defaults",
    "former_names",
    "identity",
    "is_pace",
    "load",
    "load_snapshot",
    "lookahead",
    "option",
    "options",
    "options_in_snapshot",
    "sources_of",
    "suggestion",
    "takes_config",
    "template",
    "tree",
    "validated",
    "with_choices",
]
