"""Options of the student and its training: plan, augmentation, optimisation, pre-training, and their presets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from voxstill.core.config.section import Section, option

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


Normalization = Literal["level", "utterance", "none"]
"""How log-mels are normalised."""
CHUNKS_MS = (1120, 560, 160, 80)
"""Chunks of audio that a streaming student can be fed: it learns all of them."""
DEFAULT_CHUNK_MS = 560


def lookahead(chunk_ms: int) -> int:
    """Output frames of 80 ms that the first of a chunk's is heard with: all others of it."""
    return chunk_ms // 80 - 1


Optimizer = Literal["adamw", "muon"]
"""What learns the weights."""


class Student(Section):
    """The model to train."""

    task: str = option("recognition")
    """What is predicted of an utterance: `recognition`, its words; `classes`, its class, which `student.target` names;
    `speakers`, an embedding that distinguishes speakers, also new ones; or a task of another package."""
    target: Literal["text", "speaker", "language", "dialect", "dataset"] = option("text")
    """For `task: classes`, what names the class of an utterance: its label, or what the manifest has of it."""
    kind: Literal["ctc", "rnnt", "tdt", "seq2seq"] = option("ctc")
    """`ctc` predicts each frame by itself and is fastest; `rnnt`, a transducer, also depends on the tokens before;
    `tdt` also predicts how many frames a token lasts, and skips them; `seq2seq` is a Whisper, which needs a
    checkpoint."""
    checkpoint: str | None = option(None)
    """A Hugging Face folder, or a name on the Hub, to start from: Parakeet, wav2vec 2.0, HuBERT, WavLM or
    Whisper. It decides the size, too. Null: a new student."""
    language: str | None = option(None)
    """Language of the audio, for a Whisper checkpoint that knows many: `en`, `de` or another code."""
    freeze_features: bool = option(True)
    """The convolutions of a student that takes samples (wav2vec 2.0 and its kin) stay as the checkpoint has them."""
    freeze_layers: float = option(0.0, unit="share", ge=0, le=1)
    """Share of the encoder's layers that stay as they are, the lowest, with all that is beneath them; 1 is all of the
    encoder. They have no dropout then, and their BatchNorm counts nothing."""
    encoder_layers: int | None = option(None, unit="layers", ge=1)
    """Of a Whisper checkpoint the encoder keeps so many layers, evenly spaced, the last one among them; null: all."""
    decoder_layers: int | None = option(None, unit="layers", ge=1)
    """The same of the decoder: 2 makes a student several times as fast, as distil-whisper does."""
    size: Literal["tiny", "small", "medium", "large"] = option("tiny")
    """tiny 1.6, small 8, medium 30 and large 110 million parameters: FastConformer-CTC with a narrow stem."""
    normalization: Normalization | None = option(None)
    """How log-mels are normalised. `level`: as they are, within 6 dB of a usual level of speech; what is louder or
    fainter is brought to the edge of that range. `utterance`: each band to zero mean and unit deviation over the
    utterance, which harms short and noisy ones. `none`: as they are. Null: that of the checkpoint; of a new student
    `none` where it is a streaming one, `level` where it is another recogniser, else `utterance`."""
    streaming: bool = option(False)
    """The student takes no more than `decode.chunk_ms` ahead, so it writes during speech: a cache-aware FastConformer
    with `kind: rnnt`. A checkpoint brings its own."""
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
    """Utterances shuffled and sorted by length together: larger pads less, smaller reads less at a time. Not set, 2,048
    for each batch of a step in a new experiment, where that is more."""
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
    """Largest change of loudness, up or down. Not set, 12 for a new student with `student.normalization: level`."""
    min_snr_db: float = option(0.0, unit="dB")
    """Loudest noise."""
    max_snr_db: float = option(25.0, unit="dB")
    """Faintest noise."""
    tempo: float = option(0.1, unit="share", ge=0, lt=0.5)
    """Largest change of tempo, faster or slower; students that take samples get another pitch with it. For
    `student.task: speakers` it is 0 where it is not set, and `vtlp` too: that would be another voice."""
    vtlp: float = option(0.1, unit="share", ge=0, lt=0.5, formerly=("warp",))
    """Vocal tract length perturbation: largest change of that length; not for students that take samples."""
    time_masks: int = option(2, unit="masks", ge=0)
    """SpecAugment: stretches of time blanked."""
    time_mask_ms: int = option(200, unit="ms", ge=0)
    """SpecAugment: longest stretch of time."""
    mel_masks: int = option(2, unit="masks", ge=0)
    """SpecAugment: bands blanked."""
    mel_mask_bins: int = option(16, unit="bins", ge=0)
    """SpecAugment: widest band."""
    run_prob: float = option(0.0, unit="probability", ge=0, le=1)
    """Share of utterances of which only a random run of words is taken, where the word times are known."""
    spec_augment_start: float = option(0.4, unit="share", ge=0, le=1, formerly=("masks_from",))
    """SpecAugment starts after this share of the training."""


class TrainingCorpus(Section):
    """Finished shards to learn from."""

    work: str = option()
    """Work folder, or bucket prefix, that has them."""
    shards: str | None = option(None)
    """Their recipe, or the teacher of their labels, where there are several: `reference` for human texts."""
    dataset: str | None = option(None)
    """Data set that all its utterances count as, for `plan.weights`; unset, that of the manifest."""


class Distill(Section):
    """Learn the outputs and the hidden layers of a finished model beside the labels."""

    checkpoint: str | None = option(None)
    """The teacher: an experiment, or a model folder, with the tokenizer of the student, which takes it over where
    `student.units` is `auto`. A CTC model for `ctc`, `rnnt` and `tdt` students, or a transducer for one of its kind; a
    Whisper for `seq2seq`. Null: none."""
    weight: float = option(1.0, unit="weight", ge=0)
    """Of the divergence from the teacher's outputs, beside the loss of the labels. 0 compares `layers` alone: the
    teacher may then be of any kind, and have any tokenizer."""
    temperature: float = option(1.0, gt=0)
    """Above 1 both distributions are made flatter, so that what is unlikely counts more; the divergence is multiplied
    by its square."""
    layers: dict[Annotated[int, Field(strict=False)], int] = option({})  # keys of JSON are text
    """Layers of the student's encoder, counted from 1, with the layer of the teacher's that each is to be like:
    `{2: 6, 4: 12}`. Where their widths differ a linear projection is learnt, which the finished model is without."""
    layer_weight: float = option(1.0, unit="weight", gt=0)
    """Of the distance between these layers, beside the loss of the labels."""


class Train(Section):
    """How the student learns. The first of `steps`, `epochs` and `max_minutes` that is reached ends the training."""

    preset: Literal["fine_tune"] | None = option(None)
    """`fine_tune` sets what is common where a checkpoint learns a task of its own, by `student.task`, and is not set
    here: epochs, learning rate and its schedule, `plan.max_utterances` and `student.freeze_layers`."""
    corpora: list[TrainingCorpus] = option([], pace=True)
    """Learn from several corpora: a list of `work`, and where wanted `shards` and `dataset`. An utterance of several
    comes from the first. Without any, from the shards of `work` above."""
    steps: int | None = option(None, unit="steps", ge=1)
    """Optimizer steps."""
    epochs: int | None = option(None, unit="epochs", ge=1)
    """Passes over the corpus."""
    max_minutes: float | None = option(None, unit="min", gt=0)
    """Training time. Learning rate and phases follow the clock, so only `steps` and `epochs` repeat bit by bit."""
    lr: float = option(2e-3, unit="1/step", gt=0)
    """Peak learning rate."""
    lr_factor: float = option(1.0, gt=0)
    """The learning rate of the whole schedule is multiplied by it; `voxstill control` changes it while it trains."""
    optimizer: Optimizer | None = option(None)
    """`muon` makes the update of each weight matrix of the layers orthogonal, and leaves all other weights to AdamW: a
    new student learns as much in a third of the steps or less, and a step takes up to half as long again on a CPU. It
    takes the learning rate of AdamW. Null: `muon` for a new recogniser, else `adamw`."""
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
    dataset_weights: dict[str, float] = option({}, unit="weight")
    """The same by data set: 0.5 for that of the pseudo-labels makes human texts count twice as much."""
    class_weights: Literal["balanced"] | dict[str, float] = option({}, unit="weight")
    """For `student.task: classes` and `speakers`, how much the loss of a class counts, by its name; 1, where it is not
    named. `balanced`: rare classes count as much together as frequent ones."""
    label_smoothing: float = option(0.0, unit="share", ge=0, lt=1)
    """Share of CTC's loss that asks each frame to be unsure of everything: 0.1 is common, 0 does without."""
    distill: Distill = Distill()
    """Learn the outputs and the hidden layers of a finished model beside the labels."""
    consistency: float = option(0.0, unit="weight", ge=0)
    """Above 0 a CTC student takes each batch twice, with other noise and masks, and is to predict the same: CR-CTC, 0.2
    in its paper. A step takes twice as long."""
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
    export_dtype: Literal["fp16", "bf16"] | None = option(None, pace=True)
    """Beside each checkpoint a copy of the model in this precision, in `exports/`; with `train.upload` it is brought
    there while the training goes on. Null: none."""
    export_changes: bool = option(False, pace=True)
    """The copies in `exports/`, in `export_dtype` or as they are, have only the weights that differ from those of
    `student.checkpoint`, and its checksum. `voxstill.restore_model` makes whole models of them."""
    keep_best: int = option(1, unit="checkpoints", ge=1)
    """So many checkpoints with the fewest errors on the dev split stay, besides the last."""
    keep_every: int | None = option(None, unit="steps", ge=1, pace=True)
    """Checkpoints of every so many steps stay, too; unset, none for its step alone."""
    validate_every: int = option(500, unit="steps", ge=1)
    """The error rate on the dev split is measured, and there is a checkpoint of what was judged."""
    log_every: int = option(20, unit="steps", ge=1, pace=True)
    """A line in `metrics.jsonl` and TensorBoard."""
    profile: int | None = option(None, unit="steps", ge=1, le=100, pace=True)
    """After ten steps of warm-up, or of going on, a trace of so many steps of the first rank is written to `profile/`
    of the experiment, for Perfetto; null: none. A validation ends it."""
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
    cuda_graphs: bool = option(False)
    """Run the encoder as CUDA graphs, one for each of the few shapes that batches are padded to: for a FastConformer on
    one GPU, whose kernels one core cannot start fast enough. It takes a few seconds at the start and more memory."""
    sync_batchnorm: bool = option(False)
    """On several GPUs, BatchNorm counts over the batches of all ranks: their number is then part of what is learnt."""
    shard_above: float = option(1000.0, unit="million parameters", ge=0, pace=True)
    """A larger model is not copied to every rank, but its weights, gradients and moments are shared out: FSDP."""
    # `pace`, though augmentation and dropout are drawn by rank: the global batches are the same, and a training has to
    # go on with the number of GPUs that there is (docs/decisions/0020)
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
    name: str = option("student", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$", pace=True)
    """Name in the experiment folder: letters, digits, `.`, `_` and `-`, at most 200, a letter or a digit first."""
    root: str = option("exp", pace=True)
    """Folder of experiment folders."""
    upload: str | None = option(None, pace=True)
    """Folder, bucket prefix or repository of the Hugging Face Hub (`hf://OWNER/NAME`) to which the finished model is
    copied, with its configuration, figures and log. Unset, it stays here alone."""


class Pretrain(Section):
    """How a model learns from audio alone; steps, learning rate and checkpoints are those of `train`."""

    method: Literal["wav2vec2", "best_rq"] = option("wav2vec2")
    """`wav2vec2` distinguishes masked frames from others of the utterance and makes its code book as it learns;
    `best_rq` predicts the codes of a random one, is cheaper, and makes the encoder of a `ctc`, `rnnt` or `tdt`
    student."""
    size: Literal["tiny", "base", "large"] = option("base")
    """Of a new wav2vec 2.0: 1.0, 95 or 317 million parameters. For `best_rq` it is `student.size` that counts."""
    checkpoint: str | None = option(None)
    """A Hugging Face folder, or a name on the Hub, to start from: wav2vec 2.0, or a Parakeet for `best_rq`."""
    crop_ms: int = option(15_600, unit="ms", ge=100)
    """Of a longer utterance so much is taken at a time, each epoch another stretch."""
    mask_prob: float | None = option(None, unit="share", gt=0, le=1)
    """Share of the frames that spans would hide if none lay over another. Null: 0.65, or 0.4 for `best_rq`."""
    mask_ms: int | None = option(None, unit="ms", ge=20)
    """Length of a span that is hidden. Null: 200, or 400 for `best_rq`."""
    min_masks: int = option(2, unit="spans", ge=1)
    """As much as so many spans is hidden of every utterance; those too short for it are left out, with a count."""
    negatives: int = option(100, unit="frames", ge=1)
    """Masked frames of the same utterance that a masked frame is to be distinguished from."""
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
