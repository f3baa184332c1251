"""Diarizes one recording with sherpa-onnx in a process of its own; run by the engine `sherpa-onnx` as a script.

It reads options from its first argument as JSON and float samples from the file of its second, and prints one JSON list
of start, end (in seconds) and speaker.
"""

from __future__ import annotations

import json
import sys


def main(options: str, samples: str) -> None:
    """Print the segments."""
    import numpy as np
    import sherpa_onnx

    wanted = json.loads(options)
    config = sherpa_onnx.OfflineSpeakerDiarizationConfig(
        segmentation=sherpa_onnx.OfflineSpeakerSegmentationModelConfig(
            pyannote=sherpa_onnx.OfflineSpeakerSegmentationPyannoteModelConfig(model=wanted["segmentation"]),
            num_threads=wanted["num_threads"],
        ),
        embedding=sherpa_onnx.SpeakerEmbeddingExtractorConfig(
            model=wanted["embedding"], num_threads=wanted["num_threads"]
        ),
        clustering=sherpa_onnx.FastClusteringConfig(
            num_clusters=wanted["num_speakers"] or -1, threshold=wanted["threshold"]
        ),
        min_duration_on=wanted["min_duration_on"],
        min_duration_off=wanted["min_duration_off"],
    )
    if not config.validate():
        sys.exit("sherpa-onnx refuses these options")
    segments = sherpa_onnx.OfflineSpeakerDiarization(config).process(np.load(samples)).sort_by_start_time()
    sys.stdout.write(json.dumps([(segment.start, segment.end, segment.speaker) for segment in segments]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
