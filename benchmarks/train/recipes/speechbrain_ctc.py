"""A CTC Conformer in SpeechBrain's own loop; what its user writes, with a manifest of `audio` and `text` in JSONL.

python speechbrain_ctc.py speechbrain_ctc.yaml --manifest corpus/manifest.jsonl --num_tokens 1001
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import soundfile
import speechbrain
from hyperpyyaml import load_hyperpyyaml
from speechbrain.dataio.batch import PaddedBatch
from speechbrain.dataio.dataio import read_audio
from speechbrain.dataio.dataset import DynamicItemDataset
from speechbrain.dataio.encoder import CTCTextEncoder
from torch import Tensor


class Recognizer(speechbrain.Brain):  # type: ignore[misc]
    """Log-mels, a Conformer, and CTC."""

    def compute_forward(self, batch: PaddedBatch, stage: speechbrain.Stage) -> tuple[Tensor, Tensor]:
        """Log-probabilities, and which share of the longest each utterance is long."""
        samples_BT, shares_B = batch.to(self.device).samples
        features_BFD = self.modules.normalize(self.hparams.features(samples_BT), shares_B)
        hidden_BFE = self.modules.encoder.encode(self.modules.stem(features_BFD), shares_B)
        return self.modules.head(hidden_BFE).log_softmax(-1), shares_B

    def compute_objectives(
        self, predictions: tuple[Tensor, Tensor], batch: PaddedBatch, stage: speechbrain.Stage
    ) -> Tensor:
        """CTC's loss."""
        log_probs_BFV, shares_B = predictions
        tokens_BU, token_shares_B = batch.tokens
        loss: Tensor = self.hparams.ctc_loss(log_probs_BFV, tokens_BU, shares_B, token_shares_B)
        return loss


def utterances(manifest: str) -> DynamicItemDataset:
    """The corpus: audio and tokens by utterance."""
    path, rows = Path(manifest), dict[str, Any]()
    for number, line in enumerate(path.read_text().splitlines()):
        row = json.loads(line)
        audio = path.parent / row["audio"]
        rows[str(number)] = {"path": str(audio), "duration": soundfile.info(audio).duration, "text": row["text"]}
    encoder = CTCTextEncoder()
    encoder.insert_blank(index=0)
    encoder.update_from_iterable(row["text"].split() for row in rows.values())
    data = DynamicItemDataset(rows)
    data.add_dynamic_item(read_audio, takes="path", provides="samples")
    data.add_dynamic_item(
        lambda text: encoder.encode_sequence_torch(text.split()).long(), takes="text", provides="tokens"
    )
    data.set_output_keys(["id", "samples", "tokens"])
    return data


def main(arguments: list[str], recognizer: type[Recognizer] = Recognizer) -> None:
    """Train."""
    path, run_options, overrides = speechbrain.parse_arguments(arguments)
    with Path(path).open() as file:
        options = load_hyperpyyaml(file, overrides)
    data = utterances(options["manifest"])
    brain = recognizer(
        modules=options["modules"],
        opt_class=options["optimizer"],
        hparams=options,
        run_opts=run_options,
    )
    loading = {
        "batch_sampler": options["sampler"](data, length_func=lambda row: row["duration"]),
        "num_workers": options["workers"],
    }
    brain.fit(range(1, options["epochs"] + 1), data, train_loader_kwargs=loading)


if __name__ == "__main__":
    main(sys.argv[1:])
