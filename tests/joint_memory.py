"""How much memory a transducer's joint takes, measured in a process of its own: `measure(chunk, output)`."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import torch
from torch import Tensor, nn

from voxstill.nn import losses


def measure(chunk: int, output: Path) -> None:
    """Write kilobytes of the peak, the loss and the norm of a gradient; `chunk` frames are joined at a time."""
    torch.manual_seed(0)
    head = nn.Linear(64, 1000)

    def joint(encoded: Tensor, predicted: Tensor) -> Tensor:
        logits: Tensor = head((encoded + predicted).relu())
        return logits

    encoded, predicted = torch.randn(4, 150, 64, requires_grad=True), torch.randn(4, 41, 64, requires_grad=True)
    tokens, frames, lengths = torch.randint(0, 999, (4, 40)), torch.full((4,), 150), torch.full((4,), 40)
    short = losses.lattice(joint, encoded[:, :8], predicted, tokens, 999)
    losses.transducer(short, torch.full((4,), 8), lengths).sum().backward()  # type: ignore[no-untyped-call]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lattice = losses.lattice(joint, encoded, predicted, tokens, 999, chunk=chunk)
    loss = losses.transducer(lattice, frames, lengths).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert head.weight.grad is not None
    output.write_text(json.dumps([peak, float(loss.detach()), float(head.weight.grad.norm())]))
