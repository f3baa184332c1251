"""A configuration that is read is complete, in range and spelt right: defaults <- YAML <- environment <- `--set`.

One option costs one line, with its sentence beneath it; `voxstill explain` and `voxstill init` print just these lines.
YAML is read as version 1.2: `3e-4` is a number, `no` is a word and `1:30` is text.
"""

from __future__ import annotations

import difflib
import io
import logging
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from voxstill.errors import ConfigError

ENVIRONMENT_PREFIX = "VOXSTILL__"
LIVE = {"source": ["  uri: path/to/audio"], "teacher": ["  name: pocketsphinx"], "train": ["  max_minutes: 10.0"]}
"""What nobody can leave out of a first configuration."""
TEACHER_PRESETS: dict[str, dict[str, Any]] = {
    "whisper-large-v3-vllm": {
        "name": "vllm",
        "model": "openai/whisper-large-v3",
        "dtype": "bfloat16",
        "max_model_len": 448,
        "max_num_seqs": 256,
        "temperature": 0.0,
    },
    "qwen3-asr-vllm": {
        "name": "vllm",
        "model": "Qwen/Qwen3-ASR-1.7B",
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "temperature": 0.0,
        "max_tokens": 512,
    },
    "qwen3-omni-vllm": {
        "name": "vllm",
        "model": "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        "dtype": "bfloat16",
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.95,
        "temperature": 0.0,
        "max_tokens": 512,
    },
    "parakeet-transformers": {
        "name": "transformers",
        "model": "nvidia/parakeet-tdt-0.6b-v3",
        "batch_ms": 600_000,
    },
    "faster-whisper-small": {
        "name": "faster-whisper",
        "model": "Systran/faster-whisper-small",
        "compute_type": "int8",
        "beam_size": 5,
    },
}
"""What `teacher.preset` stands for; settings given beside it win."""
_FINE_TUNE = {
    "recognition": (5, 1e-4, 32, 1 / 3),
    "classes": (10, 5e-5, 64, 0.5),
    "speakers": (3, 2e-4, 128, 1.0),
}
"""Epochs, learning rate, most utterances in a batch, and the share of the layers that is frozen."""
TRAIN_PRESETS: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "fine_tune": {
        task: {
            "student": {"freeze_features": True, "freeze_layers": frozen},
            "plan": {"max_utterances": utterances},
            "train": {
                "epochs": epochs,
                "lr": lr,
                "schedule": "tri_stage",
                "warmup": 0.1,
                "hold": 0.5,
                "final_lr": 0.05,
            },
        }
        for task, (epochs, lr, utterances, frozen) in _FINE_TUNE.items()
    }
}
"""What `train.preset` stands for, by `student.task`; settings given beside it win."""
S = TypeVar("S", bound=BaseModel)
log = logging.getLogger("voxstill")  # that of `monitor`, which may import this module
_WARNED_OF: set[str] = set()
"""Former names of options, by their path, that this process has been warned of."""


def option(
    default: Any = ..., *, unit: str = "", pace: bool = False, formerly: Sequence[str] = (), **limits: Any
) -> Any:
    """A pydantic field that also knows its unit, its former names, and whether it changes no more than pace or place.

    What leaves every bit of the result the same is `pace`, no part of a recipe. `formerly` begins with the oldest name.
    """
    return Field(default, json_schema_extra={"unit": unit, "pace": pace, "formerly": list(formerly)}, **limits)


class Section(BaseModel):
    """A group of options: unknown keys, wrong types and non-finite numbers are refused; nothing changes afterwards."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )
    schema_version: ClassVar[int] = 1
    """Raised when a default, or the meaning of an option, changes: what was made before is then another thing."""


class Source(Section):
    """Where the audio is."""

    uri: str | list[str] = option("", pace=True)
    """A folder, file, manifest (JSONL, CSV, Parquet), list, tar or Kaldi directory; several in a list."""
    language: str | None = option(None)
    """Language of everything in the source, where the manifest does not say."""
    dataset: str | None = option(None)
    """Name of the data set, where the manifest does not say."""
    test_speakers: list[str] = option([])
    """Speakers to judge on; everybody not named here or in `dev_speakers` is then learnt from."""
    dev_speakers: list[str] = option([])
    """Speakers to stop training on; everybody not named here or in `test_speakers` is then learnt from."""
    dev_share: float = option(0.1, unit="share", ge=0, lt=1)
    """Share of speakers put aside to stop training on, where the manifest has no `split`."""
    test_share: float = option(0.1, unit="share", ge=0, lt=1)
    """Share of speakers put aside to judge on, where the manifest has no `split`."""


class Cache(Section):
    """What is kept here of audio that lies far away."""

    folder: str | None = option(None)
    """Folder on this machine for objects fetched from a bucket or a web server; unset keeps nothing."""
    max_gb: float = option(50.0, unit="GB", gt=0)
    """Largest size of that folder; what was not used for longest makes room. Shards are fetched ahead of the training
    within the same limit, into a folder in there, or into that of the experiment."""


class Segment(Section):
    """How recordings become utterances."""

    max_ms: int = option(30_000, unit="ms", ge=100)
    """Longest utterance. Longer recordings are cut at silences found by the voice-activity detector."""
    min_ms: int = option(50, unit="ms", ge=1)
    """Shorter stretches of speech are dropped; a whole recording shorter than this becomes a row with a reason."""
    vad: Literal["auto", "always", "never"] = option("auto")
    """`auto` looks for speech in recordings longer than `max_ms` only; `never` cuts those at the quietest points."""
    threshold: float = option(0.5, unit="probability", gt=0, lt=1)
    """Speech probability above which a 32 ms window counts as speech."""
    min_silence_ms: int = option(300, unit="ms", ge=0)
    """Shorter pauses do not end a stretch of speech."""
    pad_ms: int = option(100, unit="ms", ge=0)
    """Audio kept on both sides of a stretch of speech, never overlapping its neighbour."""


class Engine(Section):
    """Who does the work: a Ray cluster, or the calling process."""

    name: Literal["ray", "inline"] = option("ray")
    """`ray` spreads chunks over workers; `inline` runs the same stages in this process (tests, small corpora)."""
    address: str | None = option(None)
    """Ray cluster to join; unset starts one on this machine."""
    workers: int | None = option(None, unit="processes", ge=1)
    """CPU workers that fetch and decode; unset takes one for each core of the cluster."""
    teachers: int | None = option(None, unit="processes", ge=1)
    """Teachers side by side; unset takes as many as fit on the GPUs, or one for each core without `teacher_gpus`."""
    teacher_cpus: float = option(1, unit="cores", gt=0)
    """Cores that each teacher reserves, and the threads of its libraries."""
    teacher_gpus: float = option(0, unit="GPUs", ge=0)
    """GPUs that each teacher reserves: 0.5 puts two on one GPU, 2 gives two to each for tensor parallelism."""
    chunk: int = option(256, unit="utterances", ge=1)
    """Unit of work, of retry and of output."""
    in_flight: int = option(2, unit="chunks", ge=1)
    """Chunks handed to one worker at a time; this is the back-pressure. A teacher that hears two chunks at once is
    handed one more."""
    attempts: int = option(3, unit="tries", ge=1)
    """A chunk that fails so often is halved, down to the one utterance at fault, which is set aside with its reason."""
    decode_s: float = option(120.0, unit="s", gt=0)
    """A recording that takes longer to decode is a row with that reason: some files make a decoder run for ever."""
    decode_mb: int = option(4096, unit="MB", ge=64)
    """Memory that the decoder of one recording may take: six hours of audio take 2 GB, a decompression bomb any."""
    lease_s: float = option(600.0, unit="s", gt=0)
    """A chunk not back after this long is taken from its worker, which is ended, and given to others in halves. A slow
    teacher wants a smaller `engine.chunk` or a longer lease."""


class Monitor(Section):
    """What a run tells while it works."""

    port: int | None = option(None, ge=0, le=65_535)
    """Prometheus reads the figures of the steps here, at `/metrics`; 0 lets the system choose, unset serves nothing."""
    host: str = option("127.0.0.1")
    """Address that is listened on: only this machine can ask, unless another is given."""
    log_level: Literal["debug", "info", "warning", "error"] = option("info")
    """Messages of this weight and above are shown; `--log-level` says the same."""


class Teacher(BaseModel):
    """Which model labels the audio. Each teacher brings options of its own: `voxstill explain teacher`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, use_attribute_docstrings=True)

    name: str = option("pocketsphinx")
    """`pocketsphinx`, `transformers` (a student too), `vllm`, `faster-whisper`, `sherpa`, `openai` (any such server),
    `consensus` (what others agree on), `reference` (the human texts) or `echo` (for tests)."""

    @model_validator(mode="before")
    @classmethod
    def _a_preset_is_its_settings(cls, data: Any) -> Any:
        """`preset` gives way to what it stands for: what is hashed, kept and shown is that."""
        if not isinstance(data, dict) or "preset" not in data:
            return data
        given = {name: value for name, value in data.items() if name != "preset"}
        preset = str(data["preset"])
        if preset not in TEACHER_PRESETS:
            near = difflib.get_close_matches(preset, TEACHER_PRESETS, n=1, cutoff=0.3)
            raise ConfigError(
                f"there is no preset `{preset}`",
                why=f"the presets of teachers are {', '.join(TEACHER_PRESETS)}",
                fix=f"did you mean `{near[0]}`?" if near else "name one of them, or set teacher.name and its options",
            )
        return {**TEACHER_PRESETS[preset], **given}


class Filter(Section):
    """Which labels are worth learning from. Every score is kept, so filtering anew never relabels."""

    min_chars_per_s: float = option(0.5, unit="characters/s", ge=0)
    """Slower labels have lost words."""
    max_chars_per_s: float = option(30.0, unit="characters/s", gt=0)
    """Faster labels cannot have been spoken."""
    max_repeats: int = option(4, unit="times", ge=1)
    """A phrase of one to four words said more often than this in a row is a loop."""
    max_compression_ratio: float = option(2.4, unit="ratio", gt=0)
    """Text that zlib shrinks more than this is a loop (Whisper's limit)."""
    max_word_characters: int = option(40, unit="characters", ge=1)
    """A longer word is a loop of syllables, or several words grown together."""
    phrases: list[str] = option([])
    """Phrases that your teacher makes up where nothing is said, besides those that are known of Whisper: a label that
    is nothing else is dropped."""
    min_confidence: float = option(0.0, unit="probability", ge=0, le=1)
    """Labels the teacher is less sure of are dropped: the mean probability of a token, the geometric mean."""
    keep_share: float = option(1.0, unit="share", gt=0, le=1)
    """Keep this share of the labels, those the teacher is surest of; others fall by the rule `low_confidence`."""
    second_teacher: str | None = option(None)
    """Another teacher whose finished labels lie in the same WORK, by its name or by their recipe: labels of which it
    heard something else are dropped."""
    max_disagreement: float = option(0.1, unit="share of words", ge=0, le=1)
    """Labels of which the second teacher heard more words otherwise than this are dropped."""
    aligner: str | None = option(None)
    """A CTC model that says how well each label fits its audio: a student, wav2vec 2.0 or Parakeet-CTC, in a folder or
    by its name on the Hugging Face Hub."""
    min_alignment: float = option(-2.0, unit="log-probability", le=0)
    """Labels are dropped whose words the aligner hears with less log-probability to a token than this."""
    frame_ms: int = option(80, unit="ms", ge=1)
    """Length of one output frame of the student: a label with more words than frames cannot be learnt by CTC."""


class Shard(Section):
    """How the corpus is written."""

    utterances: int = option(2000, unit="utterances", ge=1)
    """Most utterances in one tar."""
    max_mb: int = option(1024, unit="MB", ge=1)
    """Largest tar, by the size of its audio before compression."""
    format: Literal["flac", "wav", "in_place"] = option("flac")
    """Both are lossless; flac is half the size. `in_place` writes sidecars alone, one for each tar of the source, and
    leaves the audio there: each utterance must be a whole member of a tar."""


class Student(Section):
    """The model to train."""

    task: str = option("recognition")
    """What is to be said of an utterance: `recognition`, its words; `classes`, its class, which `student.target` names;
    `speakers`, an embedding by which speakers are told apart, also new ones; or a task of another package."""
    target: Literal["text", "speaker", "language", "dialect", "dataset"] = option("text")
    """For `task: classes`, what names the class of an utterance: its label, or what the manifest says of it."""
    kind: Literal["ctc", "rnnt", "tdt", "seq2seq"] = option("ctc")
    """`ctc` says each frame by itself and is fastest; `rnnt`, a transducer, knows what it said before; `tdt` also says
    how many frames a token lasts, and skips them; `seq2seq` is a Whisper, which needs a checkpoint."""
    checkpoint: str | None = option(None)
    """A Hugging Face folder, or a name on the Hub, to start from: Parakeet, wav2vec 2.0, HuBERT, WavLM or
    Whisper. It decides the size, too. Null: a new student."""
    language: str | None = option(None)
    """Language of the audio, for a Whisper checkpoint that knows many: `en`, `de` or another code."""
    freeze_features: bool = option(True)
    """The convolutions of a student that hears samples (wav2vec 2.0 and its kin) stay as the checkpoint has them."""
    freeze_layers: float = option(0.0, unit="share", ge=0, le=1)
    """Share of the encoder's layers that stay as they are, the lowest, with all that is beneath them; 1 is all of the
    encoder. They have no dropout then, and their BatchNorm counts nothing."""
    size: Literal["tiny", "small", "medium", "large"] = option("tiny")
    """tiny 1.6, small 8, medium 30 and large 110 million parameters: FastConformer-CTC with a narrow stem."""
    units: Literal["auto", "word", "character", "bpe", "checkpoint"] = option("auto")
    """What the student spells with; `checkpoint` takes what the checkpoint spells with, as a Whisper
    always does. `auto` takes whole words where
    the labels use few enough of them, else `bpe`, and `character` for students with a frame every 20 ms."""
    bpe_pieces: int = option(512, unit="pieces", ge=32)
    """`bpe` makes so many pieces from the labels, or fewer where there is no more to join."""
    max_words: int = option(200, unit="words", ge=1)
    """`auto` takes whole words up to this many different ones."""
    text: Literal["basic", "none"] = option("basic")
    """What the student learns to write: `basic` folds case and drops punctuation, `none` keeps the label as it is."""
    dropout: float | None = option(None, unit="share", ge=0, lt=1)
    """Dropout in the encoder: 0 for a few hours of audio and a short training, 0.1 for long ones. Null: what the
    checkpoint has, and none for a new student."""


class Plan(Section):
    """How batches are made, for a whole epoch, before it starts."""

    budget_ms: int = option(120_000, unit="ms", ge=100)
    """Most audio in one batch, padding included."""
    budget_tokens: int | None = option(None, unit="tokens", ge=1)
    """Most tokens in one batch, padding included; null: as many as there are."""
    max_utterances: int = option(512, unit="utterances", ge=1)
    """Most utterances in one batch."""
    batches_per_step: int = option(1, unit="batches", ge=1, formerly=("slots",))
    """Batches in one step, shared out between the ranks, whose number must divide it. Not set, one for each of
    `train.devices`; set, trainings on other numbers of devices are the same training."""
    window: int = option(65_536, unit="utterances", ge=1)
    """Utterances shuffled and sorted by length together: larger pads less, smaller reads less at a time."""
    layout: Literal["local", "remote"] = option("local")
    """`local` shuffles everything; `remote` fills a window from a few shards after another, for buckets."""
    weights: dict[str, float] = option({}, unit="share")
    """Share of the audio that each data set has in an epoch, by its name; without any, what it has."""
    temperature: float = option(1.0, ge=1)
    """Above 1 small data sets come more often: as hours ** (1 / temperature), unless `weights` say how often."""
    dialect_sampling_rate: dict[str, float] = option({}, unit="times", formerly=("dialect_times",))
    """How often an utterance of a dialect comes in an epoch, by its name; once, where it is not named."""


class Augment(Section):
    """What is done to the audio while training, on the device."""

    noise_prob: float = option(0.6, unit="probability", ge=0, le=1)
    """Share of utterances that get noise: other utterances of the batch, coloured noise, or `augment.noise`."""
    noise: str | None = option(None)
    """Recordings of noise, a folder or a manifest as `source.uri` takes them: half of the noises come from them."""
    rirs: str | None = option(None, formerly=("rooms",))
    """Room impulse responses (RIRs), a folder or a manifest: the reverberation of a room for a share of the
    utterances."""
    rir_prob: float = option(0.3, unit="probability", ge=0, le=1, formerly=("room_prob",))
    """Share of utterances that get the reverberation of a room, where `augment.rirs` has some."""
    gain_db: float = option(0.0, unit="dB", ge=0, le=60)
    """Largest change of loudness, up or down."""
    min_snr_db: float = option(0.0, unit="dB")
    """Loudest noise."""
    max_snr_db: float = option(25.0, unit="dB")
    """Faintest noise."""
    tempo: float = option(0.1, unit="share", ge=0, lt=0.5)
    """Largest change of tempo, faster or slower; students that hear samples hear another pitch with it. For
    `student.task: speakers` it is 0 where it is not set, and `vtlp` too: that would be another voice."""
    vtlp: float = option(0.1, unit="share", ge=0, lt=0.5, formerly=("warp",))
    """Vocal tract length perturbation: largest change of that length; not for students that hear samples."""
    time_masks: int = option(2, unit="masks", ge=0)
    """SpecAugment: stretches of time blanked."""
    time_mask_ms: int = option(200, unit="ms", ge=0)
    """SpecAugment: longest stretch of time."""
    mel_masks: int = option(2, unit="masks", ge=0)
    """SpecAugment: bands blanked."""
    mel_mask_bins: int = option(16, unit="bins", ge=0)
    """SpecAugment: widest band."""
    run_prob: float = option(0.0, unit="probability", ge=0, le=1)
    """Share of utterances of which only a random run of words is heard, where the word times are known."""
    spec_augment_start: float = option(0.4, unit="share", ge=0, le=1, formerly=("masks_from",))
    """SpecAugment starts after this share of the training."""


class Train(Section):
    """How the student learns. The first of `steps`, `epochs` and `max_minutes` that is reached ends the training."""

    preset: Literal["fine_tune"] | None = option(None)
    """`fine_tune` sets what is common where a checkpoint learns a task of its own, by `student.task`, and is not set
    here: epochs, learning rate and its schedule, `plan.max_utterances` and `student.freeze_layers`."""
    steps: int | None = option(None, unit="steps", ge=1)
    """Optimizer steps."""
    epochs: int | None = option(None, unit="epochs", ge=1)
    """Passes over the corpus."""
    max_minutes: float | None = option(None, unit="min", gt=0)
    """Training time. Learning rate and phases follow the clock, so only `steps` and `epochs` repeat bit by bit."""
    lr: float = option(2e-3, unit="1/step", gt=0)
    """Peak learning rate of AdamW."""
    warmup: float = option(0.06, unit="share", ge=0, lt=1)
    """Share of the training in which the learning rate rises."""
    schedule: Literal["cosine", "tri_stage"] = option("cosine")
    """How the learning rate falls after the plateau: along a cosine, or by the same factor in each step."""
    hold: float = option(0.3, unit="share", ge=0, le=1)
    """The learning rate stays at its peak up to this share of the training."""
    final_lr: float = option(0.01, unit="share", ge=0, le=1)
    """Learning rate at the end, as a share of the peak."""
    weight_decay: float = option(0.01, unit="1/step", ge=0)
    """Decoupled weight decay; norms and biases have none."""
    unfreeze_share: float = option(0.0, unit="share", ge=0, le=1, formerly=("thaw",))
    """Over this share of the training the layers that `student.freeze_layers` holds are unfrozen, one after another
    from the top; 0 leaves them frozen."""
    clip_norm: float = option(5.0, unit="norm", gt=0)
    """Gradients are scaled down to this norm."""
    align_share: float = option(0.35, unit="share", ge=0, le=1)
    """Share of the training that starts from the teacher's word times, where it gave any."""
    align_ctc: float = option(0.3, unit="weight", ge=0)
    """Weight of CTC while learning from word times."""
    dialect_weights: dict[str, float] = option({}, unit="weight")
    """How much the loss of an utterance of a dialect counts, by its name; 1, where it is not named. What the shards say
    of single utterances is multiplied by it."""
    label_smoothing: float = option(0.0, unit="share", ge=0, lt=1)
    """Share of CTC's loss that asks each frame to be unsure of everything: 0.1 is common, 0 does without."""
    consistency: float = option(0.0, unit="weight", ge=0)
    """Above 0 a CTC student hears each batch twice, with other noise and masks, and is to say the same: CR-CTC, 0.2 in
    its paper. A step takes twice as long."""
    auxiliary_ctc: float = option(0.3, unit="weight", ge=0)
    """Weight of what a CTC student would learn beside the loss of a transducer; it teaches the encoder to listen."""
    ascending_share: float = option(0.15, unit="share", ge=0, le=1)
    """Share of the training in which batches go from short to long."""
    average: Literal["last", "best"] = option("last")
    """The weights handed over are the mean of those in the last `average_share`, or that of the `keep_best` best."""
    average_share: float = option(0.07, unit="share", ge=0, le=1)
    """With `average: last`, the weights are averaged in this last share of the training."""
    average_decay: float = option(0.0, unit="share", ge=0, lt=1)
    """Above 0 that mean is exponential, and this is what remains of it in each step: 0.999 looks back 1,000 steps."""
    checkpoint_every: int = option(500, unit="steps", ge=1, pace=True)
    """A checkpoint to resume from."""
    keep_best: int = option(1, unit="checkpoints", ge=1)
    """So many checkpoints with the fewest errors on the dev split stay, besides the last."""
    keep_every: int | None = option(None, unit="steps", ge=1, pace=True)
    """Checkpoints of every so many steps stay, too; unset, none for its step alone."""
    validate_every: int = option(500, unit="steps", ge=1)
    """The error rate on the dev split is measured, and there is a checkpoint of what was judged."""
    log_every: int = option(20, unit="steps", ge=1, pace=True)
    """A line in `metrics.jsonl` and TensorBoard."""
    patience: int | None = option(None, unit="judgements", ge=1)
    """So many on the dev split in a row without a new best one end the training; null: it goes on to its end."""
    step_timeout_s: float = option(600.0, unit="s", gt=0, pace=True, formerly=("stall_s",))
    """A rank that makes no step for so long ends all of them, with their stacks in the log."""
    seed_mode: Literal["debug", "production"] = option("production")
    """`debug` repeats bit by bit on a CPU; `production` may choose faster kernels."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = option("auto")
    """`auto` takes bf16 on Ampere and later, fp16 on Volta and Turing, fp32 on a CPU."""
    activation_checkpointing: bool = option(False)
    """Layers are computed again in the backward pass instead of remembered: less memory, more work."""
    compile: bool = option(False)
    """The layers are compiled by torch when they are first met: minutes at the start, for faster steps on a GPU."""
    sync_batchnorm: bool = option(False)
    """On several GPUs, BatchNorm counts over the batches of all ranks: their number is then part of what is learnt."""
    shard_above: float = option(1000.0, unit="million parameters", ge=0, pace=True)
    """A larger model is not copied to every rank, but its weights, gradients and moments are shared out: FSDP."""
    devices: int = option(1, unit="processes", ge=1, pace=True)
    """Training processes on this machine: GPUs, or CPU processes where there is no GPU. torchrun and srun say it
    themselves."""
    launcher: Literal["local", "ray"] = option("local", pace=True)
    """`local` starts the processes on this machine; `ray`, by Ray Train, on the cluster of `engine.address`, and
    `devices` counts those of all machines."""
    threads: int = option(1, unit="threads", ge=1)
    """CPU threads of a training process; for small students one is fastest."""
    loader_workers: int = option(1, unit="processes", ge=0, pace=True)
    """Processes of one rank that read and decode batches."""
    name: str = option("student", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", pace=True)
    """Name in the experiment folder."""
    root: str = option("exp", pace=True)
    """Folder of experiment folders."""
    upload: str | None = option(None, pace=True)
    """Folder, bucket prefix or repository of the Hugging Face Hub (`hf://OWNER/NAME`) to which the finished model is
    copied, with its configuration, figures and log. Unset, it stays here alone."""


class Decode(Section):
    """How what a CTC student or a transducer hears becomes text, where it is judged and where it transcribes."""

    beam: int = option(1, unit="texts", ge=1, le=1024)
    """Texts followed side by side, rounded up to a power of two; 1 takes the likeliest token of each frame, and knows
    no language model and no phrases."""
    lm: str | None = option(None)
    """A language model in ARPA format, plain or gzipped, of words as the student writes them: `voxstill train-lm`."""
    lm_weight: float = option(0.5, unit="weight", ge=0)
    """Weight of the language model's log-probability beside the student's (0.5 is what pyctcdecode takes)."""
    word_bonus: float = option(1.5, unit="nats")
    """Added for each word where there is a language model, which likes few words (1.5 is what pyctcdecode takes)."""
    boost: list[str] = option([])
    """Phrases to listen for, such as names, as the student writes them."""
    boost_weight: float = option(2.0, unit="nats", ge=0)
    """Added for each word of a phrase of `boost` that is said."""

    @model_validator(mode="after")
    def _help_needs_a_choice(self) -> Self:
        """A language model and phrases choose between texts, and there must be some."""
        for name in (each for each in ("lm", "boost") if self.beam == 1 and getattr(self, each)):
            raise ConfigError(
                f"`decode.{name}` has no use with `decode.beam: 1`",
                why="where one text is followed, there is nothing to choose from",
                fix="set `decode.beam`, to 16 for example",
            )
        return self


class Pretrain(Section):
    """How a model learns from audio alone; steps, learning rate and checkpoints are those of `train`."""

    method: Literal["wav2vec2", "best_rq"] = option("wav2vec2")
    """`wav2vec2` tells hidden frames from others of the utterance and makes its code book as it learns; `best_rq` says
    the codes of a random one, is cheaper, and makes the encoder of a `ctc`, `rnnt` or `tdt` student."""
    size: Literal["tiny", "base", "large"] = option("base")
    """Of a new wav2vec 2.0: 1.0, 95 or 317 million parameters. For `best_rq` it is `student.size` that counts."""
    checkpoint: str | None = option(None)
    """A Hugging Face folder, or a name on the Hub, to start from: wav2vec 2.0, or a Parakeet for `best_rq`."""
    crop_ms: int = option(15_600, unit="ms", ge=100)
    """Of a longer utterance so much is heard at a time, each epoch another stretch."""
    mask_prob: float | None = option(None, unit="share", gt=0, le=1)
    """Share of the frames that spans would hide if none lay over another. Null: 0.65, or 0.4 for `best_rq`."""
    mask_ms: int | None = option(None, unit="ms", ge=20)
    """Length of a span that is hidden. Null: 200, or 400 for `best_rq`."""
    min_masks: int = option(2, unit="spans", ge=1)
    """As much as so many spans is hidden of every utterance; those too short for it are left out, with a count."""
    negatives: int = option(100, unit="frames", ge=1)
    """Hidden frames of the same utterance that a hidden frame is to be told from."""
    diversity_weight: float = option(0.1, unit="weight", ge=0)
    """How much it counts that all codes are used."""
    max_temperature: float = option(2.0, gt=0)
    """Of the Gumbel softmax that draws codes, at the start."""
    min_temperature: float = option(0.5, gt=0)
    """Below this it does not fall."""
    temperature_decay: float = option(0.999995, unit="share", gt=0, le=1)
    """What remains of it in each step."""
    feature_gradient: float = option(0.1, unit="share", ge=0, le=1)
    """What reaches the convolutions of the gradient: they learn more slowly."""
    layer_drop: float = option(0.05, unit="probability", ge=0, lt=1)
    """Share of the layers of a wav2vec 2.0 that a batch does not go through."""
    dropout: float = option(0.1, unit="share", ge=0, lt=1)
    """Dropout in the encoder."""
    targets: Literal["mels", "cepstra"] = option("mels")
    """Of what `best_rq` makes codes: `mels`, of a random projection of all that a frame holds, as the paper does with
    thousands of hours; `cepstra`, of the shape of its spectrum alone, where there are few hours."""
    codes: int | None = option(None, unit="codes", ge=2)
    """Size of the code book of `best_rq`. Null: 8192, or 128 for `cepstra`."""
    code_dims: int | None = option(None, unit="dimensions", ge=1)
    """Its vectors have so many dimensions. Null: 16, or 8 cepstra."""


class Evaluate(Section):
    """How a recogniser is judged."""

    split: Literal["train", "dev", "test"] = option("test")
    """Utterances judged."""
    normalizer: Literal["none", "basic", "zh", "tr", "ar", "whisper"] = option("basic")
    """What is made alike before words are compared: `basic` folds case, punctuation, digits and Unicode form."""
    texts: str | None = option(None)
    """JSONL of `id` and `text`: human words that no step but evaluation may read."""
    bootstrap_draws: int = option(1000, unit="draws", ge=100, formerly=("resamples",))
    """Bootstrap draws of speakers for the 95 % interval."""
    lm_order: int | None = option(None, unit="words", ge=1, le=7)
    """`voxstill run` judges the student twice: without, and by a beam with n-grams of up to so many words, counted from
    the labels that it learnt from and from no other text; null: once."""
    worst: int = option(20, unit="utterances", ge=0)
    """Utterances with most errors shown in the report, with their audio."""


class Demo(Section):
    """The corpus that `voxstill demo` makes for itself."""

    train_utterances: int = option(2200, unit="utterances", ge=10)
    """Commands said by the voices of the training split."""
    dev_utterances: int = option(60, unit="utterances", ge=6)
    """Commands said by other voices, to stop training on."""
    test_utterances: int = option(360, unit="utterances", ge=6)
    """Commands said by voices that training never hears."""


class Config(Section):
    """Everything a run needs; everything but `source.uri` has a default."""

    work: str = option("work/default", pace=True)
    """Folder (or bucket prefix) of the tables and shards."""
    seed: int = option(0, ge=0)
    """All chance comes from here."""
    source: Source = Source()
    cache: Cache = Cache()
    segment: Segment = Segment()
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
    demo: Demo = Demo()

    @model_validator(mode="before")
    @classmethod
    def _a_name_is_a_section(cls, data: Any) -> Any:
        """`engine: inline` means `engine: {name: inline}`; the same for the teacher."""
        if isinstance(data, dict):
            return {k: {"name": v} if k in ("engine", "teacher") and isinstance(v, str) else v for k, v in data.items()}
        return data

    @model_validator(mode="before")
    @classmethod
    def _a_task_has_settings_of_its_own(cls, data: Any) -> Any:
        """`train.preset` gives way to what it stands for, and a speaker keeps the voice: what is hashed, kept and shown
        is that."""
        if not isinstance(data, dict):
            return data
        given = {name: _given(data.get(name)) for name in ("student", "plan", "augment", "train")}
        if any(each is None for each in given.values()):  # of the wrong type, which is told later
            return data
        tree = {name: dict(each) for name, each in given.items() if each is not None}
        task = str(tree["student"].get("task", "recognition"))
        preset = TRAIN_PRESETS.get(str(tree["train"].get("preset")), {}).get(task, {})
        for name, settings in preset.items():
            ends = {"steps", "epochs", "max_minutes"} & {key for key, value in tree[name].items() if value is not None}
            tree[name] = {key: value for key, value in settings.items() if key != "epochs" or not ends} | tree[name]
        if preset:
            del tree["train"]["preset"]
        if task == "speakers":
            tree["augment"] = {"tempo": 0.0, "vtlp": 0.0} | tree["augment"]
        return {**data, **{name: each for name, each in tree.items() if each}}

    @model_validator(mode="after")
    def _every_device_has_a_batch(self) -> Self:
        """Without `plan.batches_per_step` a step has a batch for each device."""
        if "batches_per_step" not in self.plan.model_fields_set and self.train.devices > 1:
            plan = self.plan.model_copy(update={"batches_per_step": self.train.devices})
            plan.model_fields_set.discard("batches_per_step")  # it is not set, but follows the devices
            self.__dict__["plan"] = plan
        return self


def _given(section: Any) -> Mapping[str, Any] | None:
    """What was set of a section; None where that is none."""
    if isinstance(section, Section):
        return section.model_dump(exclude_unset=True)
    return {} if section is None else section if isinstance(section, dict) else None


def load(
    path: str | None = None, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Config:
    """The configuration of file, environment and `key=value` overrides, later ones winning.

    Raises ConfigError with the dotted path of the first option that is wrong.
    """
    below = renamed(Config, _read_yaml(path)) if path else {}
    spellings: dict[str, str] = {}
    for name, text in sorted((environment or {}).items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            dotted = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            _set_current(below, dotted, _scalar(text, name), name, spellings)
    return validated(Config, tree(overrides, below))


def tree(overrides: Sequence[str], below: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`key=value` overrides as a tree of options, over one that there is; nothing but their form is checked."""
    options = dict(below or {})
    spellings: dict[str, str] = {}
    for override in overrides:
        dotted, equals, text = override.partition("=")
        if not equals or not dotted.strip():
            raise ConfigError(
                f"`--set {override}` is not an override", why="it has no `=`", fix="write --set section.key=value"
            )
        value = _scalar(text, f"--set {override}")
        _set_current(options, dotted.strip(), value, f"--set {override}", spellings)
    return options


def validated(kind: type[S], tree: Mapping[str, Any], prefix: str = "") -> S:
    """The section, or a ConfigError that names the option by its dotted path, the reason and a suggestion."""
    try:
        return kind.model_validate(renamed(kind, tree, prefix))
    except ValidationError as error:
        raise _explain(kind, error, prefix) from None


def dump(config: Config) -> str:
    """The configuration as YAML that `load` reads back to an equal one."""
    stream = io.StringIO()
    _yaml().dump(config.model_dump(), stream)
    return stream.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of `voxstill explain`."""

    path: str
    type: str
    unit: str
    default: Any
    limits: str
    meaning: str


def identity(section: BaseModel) -> dict[str, Any]:
    """What a recipe hashes of a section: the options that change what is made and differ from their default.

    The schema number is part of it above 1, and an option has the first name that it ever had. So neither a new option,
    a new section nor a new name changes what a recipe is. Sections within sections go the same way.
    """
    kind, options = type(section), {}
    first_name = {name: others[0] for name, others in former_names(kind).items()}
    for name, field in kind.model_fields.items():
        value = getattr(section, name)
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if is_pace(field):
            continue
        if isinstance(value, BaseModel) and isinstance(default, BaseModel):
            is_default = not identity(value)
        else:
            is_default = not field.is_required() and _identity_of(value) == _identity_of(default)
        if not is_default:
            options[first_name.get(name, name)] = _identity_of(value)
    version = getattr(kind, "schema_version", 1)
    return options if version == 1 else {"schema_version": version, **options}


def _identity_of(value: Any) -> Any:
    """A value as a recipe hashes it, sections in lists and mappings by their identity."""
    if isinstance(value, BaseModel):
        return identity(value)
    if isinstance(value, Mapping):
        return {name: _identity_of(member) for name, member in value.items()}
    return [_identity_of(member) for member in value] if isinstance(value, list | tuple) else value


def renamed(kind: type[BaseModel], tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The options by the names of today; each former name is warned of once. ConfigError where both names are set."""
    former: dict[str, str] = {}
    current = _renamed(kind, tree, prefix, former)
    if new := {other: name for other, name in former.items() if other not in _WARNED_OF}:
        _WARNED_OF.update(new)
        names = ", ".join(f"`{other}` is now `{name}`" for other, name in new.items())
        log.warning("config: options have other names: %s. The old ones still work", names)
    return current


def _renamed(kind: type[BaseModel], tree: Mapping[str, Any], prefix: str, former: dict[str, str]) -> dict[str, Any]:
    """The options by the names of today; what had another name is added to `former`, by its path."""
    current: dict[str, Any] = {}
    names = {other: name for name, others in former_names(kind).items() for other in others}
    for key, value in tree.items():
        name = names.get(key, key)
        if name in current:
            raise _both_names(f"{prefix}{name}", [f"{prefix}{other}" for other in former_names(kind)[name]])
        if name != key:
            former[f"{prefix}{key}"] = f"{prefix}{name}"
        field = kind.model_fields.get(name)
        is_section = field is not None and _is_section(field) and isinstance(value, Mapping)
        below = cast("type[BaseModel]", field.annotation) if field and is_section else None
        current[name] = _renamed(below, value, f"{prefix}{name}.", former) if below else value
    return current


def former_names(kind: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """The options of a section that have had other names, with these, the oldest first."""
    former = {name: tuple(_extra(field, "formerly") or ()) for name, field in kind.model_fields.items()}
    return {name: formers for name, formers in former.items() if formers}


def _both_names(name: str, former: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"`{name}` is set twice, once by its former name",
        why=f"{' and '.join(f'`{other}`' for other in former)} was renamed to `{name}`",
        fix=f"keep `{name}` alone",
    )


def is_pace(field: FieldInfo) -> bool:
    """Whether an option changes no more than the pace or the place, and so no recipe."""
    return bool(_extra(field, "pace"))


def _extra(field: FieldInfo, name: str) -> Any:
    """What `option` was told of a field; None of fields of another making."""
    return field.json_schema_extra.get(name) if isinstance(field.json_schema_extra, dict) else None


def options(kind: type[BaseModel] = Config, prefix: str = "") -> Iterator[Option]:
    """Every option below `kind`, in the order it is written."""
    for name, field in kind.model_fields.items():
        path = f"{prefix}{name}"
        if _is_section(field):
            yield from options(cast("type[BaseModel]", field.annotation), f"{path}.")
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        yield Option(
            path=path,
            type=_type_name(field.annotation),
            unit=str(_extra(field, "unit") or ""),
            default=default,
            limits=", ".join(_limit(rule) for rule in field.metadata if _limit(rule)),
            meaning=" ".join((field.description or "").split()),
        )


def template() -> str:
    """A commented configuration: what must be said stands plain, everything else is there with its default."""
    lines = [
        "# voxstill configuration. Commented options show their defaults: take away `# ` to change one.",
        "# The whole line:  voxstill run THIS_FILE      Every option:  voxstill explain",
        "",
        "work: work/mine",
        f"# seed: {Config().seed}",
        "",
    ]
    for name, field in Config.model_fields.items():
        if not _is_section(field) or name == "demo":
            continue
        kind = cast("type[BaseModel]", field.annotation)
        doc = (kind.__doc__ or "").strip().splitlines()[0]
        live = LIVE.get(name, [])
        lines += [f"{name}:  # {doc}" if live else f"# {name}:  # {doc}", *live]
        for each in options(kind):
            unit = f" [{each.unit}]" if each.unit else ""
            if any(line.strip().startswith(f"{each.path}:") for line in live):
                lines.append(f"  # ^{unit} {each.meaning}")
            else:
                lines.append(f"#   {each.path}: {_inline(each.default)}  #{unit} {each.meaning}")
        lines.append("")
    return "\n".join(lines)


def _yaml() -> Any:
    from ruamel.yaml import YAML  # half of this module's import time, and `voxstill --help` needs none of it
    from ruamel.yaml.representer import SafeRepresenter

    class Representer(SafeRepresenter):
        def represent_str(self, data: str) -> Any:
            odd = any(char in data for char in "\x85\u2028\u2029")  # line breaks to YAML, unless they are escaped
            return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if odd else None)

    Representer.add_representer(str, Representer.represent_str)
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer = Representer
    yaml.default_flow_style = False  # one option a line
    yaml.sort_base_mapping_type_on_output = False
    return yaml


def _inline(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return '""' if value == "" else str(value)


def _read_yaml(path: str) -> dict[str, Any]:
    from ruamel.yaml.error import YAMLError

    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"configuration `{path}` cannot be read",
            why=error.strerror or str(error),
            fix=f"check the path, or write a new one: voxstill init > {path}",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration `{path}` is not text", why=str(error), fix="save it as UTF-8") from None
    try:
        tree = _yaml().load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(
            f"configuration `{path}` is not YAML{where}", why=str(why), fix="compare with the output of: voxstill init"
        ) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"configuration `{path}` is not a mapping",
            why=f"its top level is a {type(tree).__name__}",
            fix="start each section with `name:`; see voxstill init",
        )
    return tree


def _scalar(text: str, where: str) -> Any:
    from ruamel.yaml.error import YAMLError

    try:
        return _yaml().load(text)
    except YAMLError as error:
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"the value in `{where}` is not YAML", why=str(why), fix="put quotes round it") from None


def _set(tree: dict[str, Any], dotted: str, value: Any, where: str) -> None:
    *sections, key = dotted.split(".")
    for section in sections:
        below = tree.setdefault(section, {})
        if below is None or (isinstance(below, str) and section in ("engine", "teacher")):
            below = tree[section] = {} if below is None else {"name": below}
        if not isinstance(below, dict):
            raise ConfigError(
                f"`{where}` goes below `{section}`, which is not a section",
                why=f"`{section}` is {below!r}",
                fix="see voxstill explain",
            )
        tree = below
    tree[key] = value


def _set_current(tree: dict[str, Any], dotted: str, value: Any, where: str, spellings: dict[str, str]) -> None:
    """Set an option by its name of today; `spellings` are the names that options have by the same source."""
    branch: dict[str, Any] = {}
    _set(branch, dotted, value, where)
    names, node = [], renamed(Config, branch)
    for _ in dotted.split("."):
        [(name, node)] = node.items()
        names.append(name)
    current = ".".join(names)
    if spellings.setdefault(current, dotted) != dotted:
        raise _both_names(current, [other for other in (dotted, spellings[current]) if other != current])
    _set(tree, current, node, where)


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _type_name(kind: Any) -> str:
    if kind is type(None):
        return "null"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_type_name(each) for each in get_args(kind))
    if get_origin(kind) is Literal:
        return " | ".join(str(each) for each in get_args(kind))
    if get_origin(kind) is list:
        return f"list of {_type_name(get_args(kind)[0])}"
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}.get(
        getattr(kind, "__name__", str(kind)), str(kind)
    )


def _limit(rule: Any) -> str:
    for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
        if hasattr(rule, name):
            return f"{sign} {getattr(rule, name)}"
    return ""


def _explain(kind: type[BaseModel], error: ValidationError, prefix: str) -> ConfigError:
    problems = error.errors()
    first = problems[0]
    location = [str(part) for part in first["loc"] if isinstance(part, str) and not part.startswith("list[")]
    if location and location[-1] in ("str", "int", "float"):  # pydantic names the member of a union it tried
        location.pop()
    dotted = prefix + ".".join(location)
    known = {each.path.removeprefix(prefix): each for each in options(kind, prefix)}
    more = f" ({len(problems) - 1} more problems follow)" if len(problems) > 1 else ""
    section = dotted.rpartition(".")[0].partition(".")[0]
    explain = f"voxstill explain {section}" if section else "voxstill explain"
    if first["type"] == "extra_forbidden":
        return ConfigError(
            f"there is no option `{dotted}`{more}",
            why="an unknown key would be ignored silently",
            fix=_suggestion(dotted.removeprefix(prefix), known, prefix) or f"see {explain}",
        )
    given = first.get("input")
    found = known.get(dotted.removeprefix(prefix))
    if first["type"] == "missing":
        return ConfigError(
            f"option `{dotted}` is not set{more}",
            why=found.meaning if found else "it has no default",
            fix=f"add it; see {explain}",
        )
    if found is None:
        return ConfigError(
            f"`{dotted}` is not a section of options{more}",
            why=f"it is {given!r}",
            fix=f"write it as a mapping; see {explain}",
        )
    wanted = found.type + (f", {found.limits}" if found.limits else "") + (f", in {found.unit}" if found.unit else "")
    fix = f"give {wanted}"
    if isinstance(given, str):
        near = difflib.get_close_matches(given, found.type.split(" | "), n=1)
        fix = f"did you mean `{near[0]}`? {fix}" if near else fix
    return ConfigError(f"option `{dotted}` cannot be {given!r}{more}", why=str(first["msg"]), fix=fix)


def _suggestion(dotted: str, known: Iterable[str], prefix: str) -> str:
    names = list(known)
    leaf = dotted.rpartition(".")[2]
    same_leaf = [name for name in names if name.rpartition(".")[2] == leaf]
    sections = {name.partition(".")[0] for name in names if "." in name}
    near = (
        same_leaf
        or difflib.get_close_matches(dotted, [*names, *sections], n=1, cutoff=0.6)
        or [
            n
            for n in names
            if n.rpartition(".")[2] in difflib.get_close_matches(leaf, [m.rpartition(".")[2] for m in names], n=1)
        ]
    )
    return f"did you mean `{prefix}{near[0]}`?" if near else ""
