"""Random students transcribe on the device: the part `decoding` of `gpu.py`."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voxstill.nn import students


def decoding(rehearse: bool) -> Mapping[str, Any]:
    """Audio-seconds a second of random students, on clips of 3 to 20 s."""
    import numpy as np

    from voxstill.core.config import Decode
    from voxstill.decoding import recognizer

    rng = np.random.default_rng(0)
    num_clips, most_s = (2, 4) if rehearse else (100, 20)
    clips = [rng.normal(0, 1000, int(rng.uniform(3, most_s) * 16_000)).astype(np.int16) for _ in range(num_clips)]
    audio_s = sum(map(len, clips)) / 16_000
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        cases: tuple[tuple[str, students.Kind, int], ...]
        cases = ("CTC", "ctc", 1), ("CTC, beam 8", "ctc", 8), ("RNN-T", "rnnt", 1)
        for name, kind, beam in cases:
            path = Path(folder) / kind
            if not path.exists():
                _random_student(path, kind, "tiny" if rehearse else "large")
            student, times = recognizer.student(Decode(beam=beam), str(path)), []
            student.load()
            for _ in range(1 if rehearse else 3):
                start_s = time.perf_counter()
                student.transcribe_batch(clips)
                times.append(time.perf_counter() - start_s)
            figures[name] = {"audio_s_per_s": audio_s / statistics.median(times)}
            student.close()
    return figures


def _random_student(folder: Path, kind: students.Kind, size: students.Size) -> None:
    """A student with 500 tokens that has learnt nothing.

    The blank of a transducer is so likely that it emits a few tokens a second, as in speech; without that it would emit
    as many as it may in each frame.
    """
    from voxstill.nn import students
    from voxstill.nn.log_mel import LogMel
    from voxstill.text import tokenizer

    vocabulary = tokenizer.train([f"w{number}" for number in range(500)], "word", 200)
    model = students.build(size, len(vocabulary.pieces), dropout=0.0, seed=0, kind=kind)
    if kind == "rnnt":
        _balance_blank(model)
    model.save_pretrained(folder)
    vocabulary.save(folder, LogMel().extractor, kind)


def _balance_blank(model: Any) -> None:
    """Raise the logit of the blank to where one frame of noise in forty has a likelier token.

    It then mostly has as many as a frame can have, ten: three tokens a second.
    """
    import torch

    from voxstill.nn import students
    from voxstill.nn.log_mel import LogMel

    noise_1T = torch.randint(-3000, 3000, (1, 20 * 16_000), generator=torch.Generator().manual_seed(0)).short()
    features_1FD, frames_1 = LogMel()(noise_1T, torch.tensor([noise_1T.shape[1]]))
    model.eval()
    with torch.no_grad():
        none_10 = torch.zeros(1, 0, dtype=torch.long)
        encoded_1FP, _, predicted_1UP, _ = students.encode_and_predict(model, features_1FD, frames_1, none_10)
        logits_FV = students.joint(model, encoded_1FP, predicted_1UP[:, :1])[0]
        lead_F = logits_FV[:, :-1].max(-1).values - logits_FV[:, -1]
        model.joint.head.bias[-1] += lead_F.quantile(0.975)
