"""What a model is made to do on a device changes its memory and its speed, and never what it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tones import PLAIN, TEXTS, batch_of, loss_of
from voxstill.core.config import Train
from voxstill.core.errors import ConfigError
from voxstill.core.records import Batch
from voxstill.nn import students
from voxstill.tasks.recognition import KINDS
from voxstill.text import tokenizer
from voxstill.training import parallel
from voxstill.training.task import StepContext

VOCABULARY = tokenizer.train(TEXTS, "word", 9)
BATCH = batch_of(VOCABULARY)


def student(kind: students.Kind, batch: Batch = BATCH) -> tuple[Any, Any]:
    """A student and its loss on a batch."""
    model = students.build("tiny", len(VOCABULARY.pieces), dropout=0.1, seed=0, kind=kind)
    task = KINDS[kind](VOCABULARY, Train(), PLAIN)
    return model, lambda: loss_of(task, model, batch, StepContext(0.0, 12, 200), torch.Generator().manual_seed(0)).value


def wav2vec2() -> tuple[Any, Any]:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    torch.manual_seed(0)
    model = Wav2Vec2ForCTC(
        Wav2Vec2Config(
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=2,
            intermediate_size=64,
            conv_dim=(16,) * 7,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=2,
            vocab_size=6,
            mask_time_prob=0.0,
            layerdrop=0.0,
        )
    )
    audio_BT = torch.randn(2, 16_000, generator=torch.Generator().manual_seed(1))
    return model, lambda: model(input_values=audio_BT).logits.log_softmax(-1)[..., 0].square().sum()


def step(model: Any, loss: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """Gradients, buffers, and the bytes that were kept for the backward pass."""
    kept = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    model.train()
    torch.manual_seed(7)  # of the dropout
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = loss()
    value.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return gradients, dict(model.named_buffers()), kept


@pytest.mark.parametrize(
    "make", [lambda: student("ctc"), lambda: student("rnnt"), wav2vec2], ids=["ctc", "rnnt", "w2v"]
)
def test_layers_that_are_computed_again_have_the_same_gradients_in_less_memory(make: Any) -> None:
    plain, buffers, much = step(*make())
    model, loss = make()
    parallel.checkpoint_activations(model)
    again, same_buffers, little = step(model, loss)
    assert plain.keys() == again.keys()
    assert max(float((plain[name] - again[name]).abs().max()) for name in plain) < 1e-6
    assert all(torch.equal(buffers[name], same_buffers[name]) for name in buffers)
    assert little < 0.5 * much  # measured: 0.27 to 0.31


@pytest.mark.slow
def test_layers_are_compiled_once_for_batches_of_all_sizes_and_learn_the_same() -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    random = np.random.default_rng(0)
    sizes = set()
    for seed in range(8):
        texts = ["ba " * int(random.integers(1, 12)), *TEXTS[: random.integers(1, 5)]]
        batch = batch_of(VOCABULARY, texts, seed=seed)
        sizes.add(tuple(batch.audio_BT.shape))
        plain, _, _ = step(*student("ctc", batch))
        model, loss = student("ctc", batch)
        parallel.compiled(model, backend="aot_eager")  # needs no compiler of C++
        gradients, _, _ = step(model, loss)
        assert max(float((plain[name] - gradients[name]).abs().max()) for name in plain) < 1e-5
    assert len(sizes) > 5
    assert counters["stats"]["unique_graphs"] <= 2
    assert not counters["graph_break"]


def test_batchnorm_over_ranks_is_refused_off_cuda() -> None:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    with pytest.raises(ConfigError, match="needs GPUs"):
        parallel.shard_model(torch.nn.BatchNorm1d(2), fabric, Train(sync_batchnorm=True))
