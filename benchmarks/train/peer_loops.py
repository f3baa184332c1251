"""One training that `peers.py` measures, in the environment of its toolkit; needs torch, and voxstill for voxstill.

The files in `recipes/` are what a user of each toolkit writes. Here is what measures them: their batches are counted
where the toolkit's own loop asks for them.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from steps import OverError
from torch import Tensor, nn
from window import Window

RECIPES = Path(__file__).parent / "recipes"
SHAPES = {"tiny": (4, 128, 4, 32, 320), "small": (10, 176, 4, 64, 603)}
"""Layers, width, heads, channels of a stem, and the feed-forward units of ESPnet: fewer, as its stem is larger."""
OURS, MUON = "voxstill", "voxstill, Muon"
SPEECHBRAIN, SPEECHBRAIN_MODEL = "SpeechBrain", "SpeechBrain, our model"
ESPNET, ESPNET_MODEL = "ESPnet", "ESPnet, our model"
RATE_HZ = 16_000


class ObservedBatches:
    """Batches of a loop; the window is notified before it reads one and after."""

    def __init__(self, batches: Iterable[Any], window: Window, lengths: Callable[[Any], tuple[float, int]]) -> None:
        """`lengths` are the samples of a batch, without its padding and with it."""
        self.batches, self.window, self.lengths = batches, window, lengths

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.batches)
        while True:
            self.window.before_batches()
            start = time.perf_counter()
            if (batch := next(batches, None)) is None:
                return
            waited_s = time.perf_counter() - start
            samples, padded = self.lengths(batch)
            self.window.after_batch(samples / RATE_HZ, padded / RATE_HZ, waited_s)
            yield batch


def main() -> None:
    """Train as long as is asked, and print the figures as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=LOOPS)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--size", choices=SHAPES, default="tiny")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warmup", type=float, default=5.0)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    window = Window(args)
    parameters = LOOPS[args.name](args, window)
    figures = {
        **window.figures(),
        "batch_s": window.audio_s / (len(window.starts) - 1),
        "parameters": parameters,
        "versions": {name: version(name) for name in ("torch", *PACKAGES[args.name])},
    }
    if window.profiler:
        window.profiler.stop()
        figures["profile"] = window.profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
    print(json.dumps(figures))


def count(model: nn.Module) -> int:
    """The parameters that a model learns."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def about(corpus: Path) -> dict[str, Any]:
    """How many words the corpus has, and parameters our models."""
    read: dict[str, Any] = json.loads((corpus / "about.json").read_text())
    return read


def our_model(corpus: Path, size: str) -> Any:
    """The student of voxstill in this library's layout of memory; from a folder that `peers.py` has made."""
    from transformers import ParakeetForCTC

    return ParakeetForCTC.from_pretrained(corpus / "models" / size)


# ------------------------------------------------------------------------------------------------------------- voxstill


def voxstill(args: argparse.Namespace, window: Window) -> int:
    """`voxstill train` on the shards of the corpus."""
    from speed import FOREVER, train_observed

    from voxstill.core import config

    settings = {
        "work": args.corpus,
        "student.size": args.size,
        **dict.fromkeys(("train.checkpoint_every", "train.validate_every"), FOREVER),
    }
    if args.name == MUON:
        settings["train.optimizer"] = "muon"
    overrides = [f"{key}={value}" for key, value in settings.items()]
    train_observed(config.load(str(RECIPES / "voxstill_ctc.yaml"), overrides, {}), window)
    return int(about(args.corpus)["parameters"][args.size])


# ---------------------------------------------------------------------------------------------------------- SpeechBrain


def speechbrain(args: argparse.Namespace, window: Window) -> int:
    """`Brain.fit`, with the model of SpeechBrain or with ours."""
    sys.path.insert(0, str(RECIPES))
    import speechbrain_ctc
    from speechbrain import Stage
    from speechbrain.dataio.batch import PaddedBatch

    parameters = 0

    class Observed(speechbrain_ctc.Recognizer):
        """The recogniser, with a loader of observed batches."""

        def make_dataloader(self, *arguments: object, **options: object) -> ObservedBatches:
            nonlocal parameters
            parameters = count(self.modules)
            return ObservedBatches(super().make_dataloader(*arguments, **options), window, self.lengths)

        @staticmethod
        def lengths(batch: PaddedBatch) -> tuple[float, int]:
            samples_BT, shares_B = batch.samples
            return float(shares_B.sum() * samples_BT.shape[1]), samples_BT.numel()

    class OurModel(Observed):
        """The same with our model in place of stem, encoder and head."""

        def __init__(self, modules: dict[str, nn.Module], **options: object) -> None:
            ours = {"normalize": modules["normalize"], "model": our_model(args.corpus, args.size)}
            super().__init__(modules=ours, **options)

        def compute_forward(self, batch: PaddedBatch, stage: Stage) -> tuple[Tensor, Tensor]:
            samples_BT, shares_B = batch.to(self.device).samples
            features_BFD = self.modules.normalize(self.hparams.features(samples_BT), shares_B)
            frames = features_BFD.shape[1]
            mask_BF = torch.arange(frames)[None] < (shares_B * frames).round()[:, None]
            logits_BFV = self.modules.model(input_features=features_BFD, attention_mask=mask_BF).logits
            return logits_BFV.log_softmax(-1), shares_B

    layers, width, heads, channels, _ = SHAPES[args.size]
    options = {
        "--manifest": args.corpus / "manifest.jsonl",
        "--num_tokens": 1 + about(args.corpus)["words"],
        **{"--layers": layers, "--width": width, "--heads": heads, "--channels": channels},
        "--device": "cpu",
    }
    arguments = [str(part) for option in options.items() for part in option]
    recognizer = OurModel if args.name == SPEECHBRAIN_MODEL else Observed
    with suppress(OverError):
        speechbrain_ctc.main([str(RECIPES / "speechbrain_ctc.yaml"), *arguments], recognizer)
    return parameters


# --------------------------------------------------------------------------------------------------------------- ESPnet


def espnet(args: argparse.Namespace, window: Window) -> int:
    """`espnet2.bin.asr_train`, with the model of ESPnet or with ours."""
    sys.path.insert(0, str(RECIPES))
    import espnet_data
    from espnet2.asr.encoder.abs_encoder import AbsEncoder
    from espnet2.tasks.asr import ASRTask, encoder_choices
    from espnet2.train.trainer import Trainer

    parameters = 0

    class Observed(Trainer):  # type: ignore[misc]
        """The trainer, with observed batches."""

        @classmethod
        def train_one_epoch(cls, model: nn.Module, iterator: Iterable[Any], *rest: object, **options: object) -> bool:
            nonlocal parameters
            parameters = count(model)
            batches = ObservedBatches(iterator, window, cls.lengths)
            return bool(super().train_one_epoch(model, batches, *rest, **options))

        @staticmethod
        def lengths(batch: tuple[list[str], dict[str, Tensor]]) -> tuple[float, int]:
            _, tensors = batch
            return float(tensors["speech_lengths"].sum()), tensors["speech"].numel()

    class OurEncoder(AbsEncoder):  # type: ignore[misc]
        """The encoder of our model; the linear layer of CTC is that of ESPnet."""

        def __init__(self, input_size: int, **_: object) -> None:
            super().__init__()
            self.encoder = our_model(args.corpus, args.size).encoder

        def output_size(self) -> int:
            return int(self.encoder.config.hidden_size)

        def forward(self, xs_pad: Tensor, ilens: Tensor, prev_states: object = None) -> tuple[Tensor, Tensor, None]:
            mask_BF = torch.arange(xs_pad.shape[1])[None] < ilens[:, None]
            output = self.encoder(input_features=xs_pad, attention_mask=mask_BF, output_attention_mask=True)
            return output.last_hidden_state, output.attention_mask.sum(1), None

    class ObservedTask(ASRTask):  # type: ignore[misc]
        """The task with that trainer."""

        trainer = Observed

    encoder_choices.classes["ours"] = OurEncoder
    layers, width, heads, _, linear_units = SHAPES[args.size]
    with tempfile.TemporaryDirectory() as temporary:
        data, corpus = Path(temporary) / "data", args.corpus / "manifest.jsonl"
        espnet_data.write(corpus.resolve(), data)
        command = ["--config", str(RECIPES / "espnet_ctc.yaml"), "--output_dir", f"{temporary}/exp"]
        command += ["--token_list", f"{data}/tokens.txt"]
        for split in ("train", "valid"):
            for source in (f"{data}/wav.scp,speech,sound", f"{data}/text,text,text"):
                command += [f"--{split}_data_path_and_name_and_type", source]
            command += [f"--{split}_shape_file", f"{data}/speech_shape"]
        if args.name == ESPNET_MODEL:
            command += ["--encoder", "ours", "--init", "none"]
        else:
            for option in (
                f"num_blocks={layers}",
                f"output_size={width}",
                f"attention_heads={heads}",
                f"linear_units={linear_units}",
            ):
                command += ["--encoder_conf", option]
        logging.disable(logging.INFO)
        with suppress(OverError):
            ObservedTask.main(cmd=command)
    return parameters


LOOPS: dict[str, Callable[[argparse.Namespace, Window], int]] = {
    OURS: voxstill,
    SPEECHBRAIN: speechbrain,
    ESPNET: espnet,
    SPEECHBRAIN_MODEL: speechbrain,
    ESPNET_MODEL: espnet,
    MUON: voxstill,
}
PACKAGES = {
    OURS: ("transformers",),
    MUON: ("transformers",),
    SPEECHBRAIN: ("speechbrain", "torchaudio"),
    SPEECHBRAIN_MODEL: ("speechbrain", "torchaudio", "transformers"),
    ESPNET: ("espnet", "torchaudio"),
    ESPNET_MODEL: ("espnet", "torchaudio", "transformers"),
}
"""Packages whose versions are of interest beside that of torch."""

if __name__ == "__main__":
    main()
