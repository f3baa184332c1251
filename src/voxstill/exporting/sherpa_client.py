"""Transcribes with sherpa-onnx in a process of its own, which sherpa-onnx ends where a model lacks what it asks for.

Run by `sherpa` as a script: it reads what to load from its first argument as JSON and samples from the file of its
second, and prints one JSON list of texts. `lead` samples stand in front of each utterance: 5 ms bring the frames of its
log-mels, which begin with the audio, to where ours are, which are centred. Where it streams, `tail` samples follow it,
and both are the noise of a quiet room: what is recorded is never silent.
"""

from __future__ import annotations

import json
import sys

_QUIET = 30
"""Standard deviation of the noise before and behind an utterance, in units of 16-bit samples."""


def main(model: str, samples: str) -> None:
    """Print the texts of all utterances."""
    import numpy as np
    import sherpa_onnx

    wanted = json.loads(model)
    lead, tail = wanted.pop("lead"), wanted.pop("tail")
    recognizer_class = getattr(sherpa_onnx, wanted.pop("recognizer"))
    recognizer = getattr(recognizer_class, wanted.pop("door"))(**wanted, num_threads=1)
    draw, texts, noise = np.random.default_rng(0), [], _QUIET if tail else 0
    with np.load(samples) as arrays:
        for name in arrays.files:
            stream = recognizer.create_stream()
            parts = [draw.normal(0, noise, lead), arrays[name], draw.normal(0, noise, tail)]
            stream.accept_waveform(16_000, np.concatenate(parts).astype(np.float32) / 32_768)
            if recognizer_class is sherpa_onnx.OfflineRecognizer:
                recognizer.decode_stream(stream)
                texts.append(stream.result.text)
                continue
            stream.input_finished()
            while recognizer.is_ready(stream):
                recognizer.decode_stream(stream)
            texts.append(recognizer.get_result(stream))
    sys.stdout.write(json.dumps(texts) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
