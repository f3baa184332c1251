"""Damaged audio, weights that do not fit and tables without a part are reasons and errors, and no other result."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors.torch import load_file, save_file

from seeds import seeded_random
from tones import PLAIN, TEXTS, speak
from voxstill.audio.decoder import Decoder
from voxstill.core.errors import DataError
from voxstill.core.records import Utterance
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.nn import students
from voxstill.nn.frontends import LogMelFrontend
from voxstill.storage import manifest, tables
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.tasks.recognition import save_student
from voxstill.text import tokenizer

FLIPS = 40


@pytest.mark.parametrize(("rate_hz", "channels"), [(16_000, 1), (44_100, 2)])
def test_flac_with_a_flipped_bit_is_the_same_audio_or_an_error(rate_hz: int, channels: int) -> None:
    chance, file = seeded_random(), io.BytesIO()
    samples_TC = np.stack([speak(TEXTS[0])[0]] * channels, axis=1)
    soundfile.write(file, samples_TC, rate_hz, format="FLAC", subtype="PCM_16")
    whole = file.getvalue()
    with Decoder(60, 512) as decoder:
        expected_T = decoder.decode(whole).samples_T
        for _ in range(FLIPS):
            data = bytearray(whole)
            data[at := chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            try:
                samples_T = decoder.decode(bytes(data)).samples_T
            except DataError:
                continue
            assert np.array_equal(samples_T, expected_T), at


@pytest.mark.parametrize("change", ["missing", "unknown", "of another shape"])
def test_weights_that_do_not_fit_are_named(tmp_path: Path, change: str) -> None:
    run, vocabulary = RunDir(tmp_path), tokenizer.train(TEXTS, "word", 9)
    model = students.build("tiny", len(vocabulary.pieces), dropout=0.0, seed=0)
    save_student(run, model, vocabulary, LogMelFrontend(PLAIN), model.state_dict())
    (run.model / "SHA256SUMS").unlink()  # as in a checkpoint of another program
    weights = load_file(run.model / "model.safetensors")
    name = next(name for name, value in weights.items() if value.ndim == 2)
    value = weights.pop(name)
    if change == "unknown":
        weights |= {name: value, f"{name}.other": value.clone()}
    elif change == "of another shape":
        weights[name] = value[:-1].contiguous()
    save_file(weights, run.model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError) as caught:
        Recognizer(RecognizerOptions(model=str(run.model))).load()
    assert name in str(caught.value)


@pytest.mark.parametrize("change", ["missing", "cut", "added", "another"])
def test_a_finished_table_of_which_a_part_is_not_what_it_was_is_refused(tmp_path: Path, change: str) -> None:
    work, prefix = Store(str(tmp_path)), "utterances/test"
    parts = [tables.to_parquet([Utterance(id=id_, recording_id="r", uri="a", end_ms=9)], Utterance) for id_ in "abc"]
    for number, part in enumerate(parts[:2]):
        work.create(f"{prefix}/{number}.parquet", part)
    manifest.write(work, prefix)
    assert len(manifest.parts(work, prefix)) == 2
    if change == "missing":
        work.delete(f"{prefix}/1.parquet")
    elif change == "added":
        work.create(f"{prefix}/2.parquet", parts[2])
    else:
        work.replace(f"{prefix}/1.parquet", parts[2] if change == "another" else parts[1][:-1])
    with pytest.raises(DataError):
        manifest.parts(work, prefix)
