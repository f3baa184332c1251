"""Options of a recogniser that `transformers` can load: which model, and how it writes."""

from __future__ import annotations

from typing import Literal

from voxstill.core.config import Section, option

GENERATION = (
    "max_new_tokens",
    "num_beams",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
)
"""Options that only an encoder-decoder has a use for, as `generate` calls them."""

BATCH_MS = 30_000
"""Of audio in a batch on a CPU, where a larger one is no faster."""
WINDOWS_MS = 240_000
"""On a CPU for a model that takes windows of 30 s and writes its texts token by token: the weights are read once for
eight texts."""
GPU_MS = 600_000
"""On a GPU, which has to be kept busy."""


class RecognizerOptions(Section):
    """Options of a recogniser, the same for a teacher, an aligner and a student."""

    model: str = option()
    """An experiment folder or the `model` folder in it, another checkpoint, or a name on the Hugging Face Hub, such as
    `owner/name` or `owner/name@revision`."""
    revision: str | None = option(None)
    """Branch, tag or commit of a name on the Hub."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto")
    """Numbers it computes with; `auto` takes bfloat16 on a GPU and float32 on a CPU."""
    batch_ms: int | None = option(None, unit="ms", ge=1000, also_default=(BATCH_MS,))
    """Most audio taken at once, padding included. Unset takes ten minutes on a GPU; on a CPU four for a Whisper, and 30
    s for other models, which are no faster there with more."""
    language: str | None = option(None)
    """Language of the audio (`en`), for a Whisper that knows many; unset, it finds out for each clip."""
    max_new_tokens: int | None = option(None, unit="tokens", ge=1)
    """Most tokens of a text; unset, what the model says."""
    num_beams: int | None = option(None, unit="beams", ge=1)
    """Texts followed side by side while searching; unset, what the model says, 1 as a rule."""
    temperature: float | None = option(None, ge=0)
    """Above 0 tokens are drawn, for each clip by itself; unset or 0 takes the likeliest."""
    top_k: int | None = option(None, unit="tokens", ge=0)
    """Draw from so many of the likeliest tokens; 0 from all."""
    top_p: float | None = option(None, unit="probability", gt=0, le=1)
    """Draw from the likeliest tokens that have this probability together."""
    repetition_penalty: float | None = option(None, gt=0)
    """Above 1 makes tokens that were said less likely."""
    no_repeat_ngram_size: int | None = option(None, unit="tokens", ge=0)
    """No run of so many tokens is said twice."""
    seed: int = option(0)
    """What is drawn, where the temperature is above 0."""
    trust_remote_code: bool = option(False)
    """Run program code that comes with the checkpoint. It can do whatever you can: read it first."""
    threads: int = option(1, unit="threads", ge=1, le=1024, pace=True)
    """CPU threads of the model."""
