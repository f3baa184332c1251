"""Transcribes with sherpa-onnx in a process of its own, which sherpa-onnx ends where a model lacks what it asks for.

Run by `sherpa` as a script: it reads what to load from its first argument as JSON and samples from the file of its
second, and prints one JSON list of texts. `lead` samples of silence stand in front of each utterance: 5 ms bring the
frames of its log-mels, which begin with the audio, to where ours are, which are centred.
"""

from __future__ import annotations

import json
import sys


def main(model: str, samples: str) -> None:
    """Print the texts of all utterances."""
    import numpy as np
    import sherpa_onnx

    wanted = json.loads(model)
    lead = wanted.pop("lead")
    recognizer = getattr(sherpa_onnx.OfflineRecognizer, wanted.pop("door"))(**wanted, num_threads=1)
    texts = []
    with np.load(samples) as arrays:
        for name in arrays.files:
            stream = recognizer.create_stream()
            stream.accept_waveform(16_000, np.pad(arrays[name].astype(np.float32) / 32_768, (lead, 0)))
            recognizer.decode_stream(stream)
            texts.append(stream.result.text)
    sys.stdout.write(json.dumps(texts) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
