"""Pre-training beside the example of transformers: is it the same, and how fast is it?

    python benchmarks/train/pretrain.py

The peer is `examples/pytorch/speech-pretraining/run_wav2vec2_pretraining_no_trainer.py` of huggingface/transformers:
masks and negatives from the functions that its collator calls, the forward pass of `Wav2Vec2ForPreTraining`, gradients
divided after each batch by its hidden frames, their norm asked of each weight, AdamW. Both sides have the same
configuration, the same first weights and the same audio, ready in memory; reading is not measured. On a GPU both train
in bf16, as `accelerate launch --mixed_precision bf16` has it. Three questions:

- `right`: loss and gradient of ours beside theirs, with the same masks, negatives and noise; and with two batches to a
  step, what the rule of the example makes of their gradient.
- `head`: forward and backward of all that comes behind the encoder (quantizer, projections, negatives, loss), the
  encoder being replaced by what it would give; and of the contrastive block alone, from vectors to the loss.
- `step`: the whole step.

Both take turns in one process; the medians count. Seconds of the processor are told beside those of the clock: with one
thread they are what it costs where others use the machine. `--batch` and `--seconds` make it small enough for a busy
one. Prints a table and writes `benchmarks/results/pretrain.json`.

`--profile` says instead where our step spends its time, by kind of operation, beside what the same products of matrices
would take at the speed of a large one, and writes `benchmarks/results/pretrain_profile.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from voxstill.core.config import Pretrain
    from voxstill.core.records import Batch
    from voxstill.tasks.pretrain import ContrastiveTask

HERE = Path(__file__).parent
LENGTH, NEGATIVES = 10, 100


def main() -> None:
    """Ask the three questions and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base", choices=("tiny", "base", "large"))
    parser.add_argument("--batch", type=int, default=8, help="utterances")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each utterance")
    parser.add_argument("--rounds", type=int, default=5, help="of the head")
    parser.add_argument("--steps", type=int, default=3, help="whole steps of each; 0 leaves them out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--output", help="default: results/pretrain.json, or pretrain_profile.json")
    args = parser.parse_args()
    output = Path(args.output or HERE.parent / f"results/pretrain{'_profile' if args.profile else ''}.json")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    import torch

    from voxstill.training import environment

    torch.set_num_threads(args.threads)
    figures: dict[str, Any] = {
        "machine": environment.machine(),
        "versions": environment.versions(),
        **{name: getattr(args, name) for name in ("size", "batch", "seconds", "threads")},
    }
    if args.profile:
        figures |= profile(args)
        output.write_text(json.dumps(figures, indent=1) + "\n")
        print(json.dumps({name: figures[name] for name in ("parts", "seconds_of", "products")}, indent=1))
        return
    figures |= {
        "right": right(),
        "head": turns(heads(args), args.rounds),
        "contrastive": turns(blocks(args), args.rounds),
    }
    if args.steps:
        figures["step"] = turns(steps(args), args.steps)
        figures["audio_seconds_per_second"] = {
            name: args.batch * args.seconds / statistics.median(rows["seconds"])
            for name, rows in figures["step"].items()
        }
    output.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures["right"], indent=1))
    print(table(figures))


def table(figures: dict[str, Any]) -> str:
    """Medians of both, and how many times as fast ours is, by the clock and by the processor."""
    lines = ["| | theirs, s | ours, s | by the clock | by the processor |", "|---|---|---|---|---|"]
    for name in ("contrastive", "head", "step"):
        if name in figures:
            rows = figures[name]
            clock, cpu = (
                {who: statistics.median(rows[who][kind]) for who in ("theirs", "ours")}
                for kind in ("seconds", "cpu_seconds")
            )
            lines.append(
                f"| {name} | {clock['theirs']:.3f} | {clock['ours']:.3f} | {clock['theirs'] / clock['ours']:.2f}x "
                f"| {cpu['theirs'] / cpu['ours']:.2f}x |"
            )
    return "\n".join(lines)


def turns(sides: dict[str, Callable[[], None]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each side, by turns, after one of each that does not count."""
    import torch

    times: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "cpu_seconds": []} for name in sides}
    for number in range(rounds + 1):
        for name, once in sides.items():
            clock, cpu = time.perf_counter(), time.process_time()
            once()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:
                times[name]["seconds"].append(time.perf_counter() - clock)
                times[name]["cpu_seconds"].append(time.process_time() - cpu)
    return times


def models(size: str, dropout: float, *, exact: bool = False) -> tuple[PreTrainedModel, PreTrainedModel, Pretrain]:
    """The model of voxstill, the peer's with the same weights, and the configuration; in bf16 on a GPU, or `exact`."""
    import torch
    from transformers import Wav2Vec2ForPreTraining

    from voxstill.core.config import Pretrain
    from voxstill.nn import self_supervised

    cfg = Pretrain.model_validate(
        {"size": size, "dropout": dropout, "layer_drop": 0.0, "feature_gradient": 1.0, "negatives": NEGATIVES}
    )
    model = self_supervised.wav2vec2(cfg, seed=0)
    peer = Wav2Vec2ForPreTraining(model.config)
    peer.load_state_dict(model.state_dict())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda" and not exact:
        for wrapped in (model, peer):  # as Fabric and accelerate do it
            vars(wrapped)["forward"] = torch.autocast("cuda", torch.bfloat16)(wrapped.forward)
    return model.to(device).train(), peer.to(device).train(), cfg


def collated(
    model: PreTrainedModel, num: int, num_samples: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks and negatives as the collator of the example draws them."""
    import torch
    from transformers.models.wav2vec2 import modeling_wav2vec2 as modeling

    shape = (num, int(model._get_feat_extract_output_lengths(num_samples)))
    mask_BF = modeling._compute_mask_indices(shape, model.config.mask_time_prob, model.config.mask_time_length)
    negative_BFK = modeling._sample_negative_indices(shape, model.config.num_negatives, mask_time_indices=mask_BF)
    return (
        torch.tensor(mask_BF, dtype=torch.long, device=device),
        torch.tensor(negative_BFK, dtype=torch.long, device=device),
    )


def divided(model: PreTrainedModel, by: float) -> None:
    """What the example does to all gradients there are after the backward pass of each batch."""
    for weight in model.parameters():
        if weight.grad is not None:
            weight.grad.mul_(1 / by)


# ------------------------------------------------------------------------------------------------------------- speed


def task_of(model: PreTrainedModel, cfg: Pretrain) -> ContrastiveTask:
    """The task of voxstill on unaugmented samples."""
    from voxstill.core.config import Augment
    from voxstill.nn import checkpoints, self_supervised
    from voxstill.tasks.pretrain import ContrastiveTask

    return ContrastiveTask(cfg, checkpoints.make_frontend(model.config, Augment()), self_supervised.codebook(model))


def audio(args: argparse.Namespace) -> Batch:
    """A batch of noise, as int16."""
    import torch

    from voxstill.core.records import RATE_HZ, Batch

    num, device = args.batch, "cuda" if torch.cuda.is_available() else "cpu"
    audio_BT = torch.randint(-3000, 3000, (num, int(args.seconds * RATE_HZ)), dtype=torch.int16, device=device)
    none_BU = torch.zeros(num, 0, dtype=torch.long, device=device)
    return Batch(
        ids=tuple(map(str, range(num))),
        audio_BT=audio_BT,
        audio_len_B=torch.full((num,), audio_BT.shape[1], device=device),
        tokens_BU=none_BU,
        token_len_B=torch.zeros(num, dtype=torch.long, device=device),
        times_BU2=none_BU[..., None].expand(-1, -1, 2),
        tempo_B=torch.ones(num, device=device),
        weight_B=torch.ones(num, device=device),
    )


def steps(args: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """A whole step of each, from samples in memory to new weights."""
    import torch
    from torch.profiler import record_function

    from voxstill.core.config import Train
    from voxstill.training import optim
    from voxstill.training.task import StepContext

    model, peer, cfg = models(args.size, dropout=0.1)
    task, batch = task_of(model, cfg), audio(args)
    task.move(batch.audio_BT.device)
    generator = torch.Generator(batch.audio_BT.device)
    optimizer = optim.make_optimizer(model, Train())
    hidden = int(task.masks.num_masked(batch.audio_len_B).sum())
    peer_optimizer = torch.optim.AdamW(list(peer.parameters()), lr=5e-5, betas=(0.9, 0.999), eps=1e-8)
    inputs_BT, _ = task.frontend.extract(batch.audio_BT, batch.audio_len_B)

    if args.profile:
        name_parts(model)

    def our_step() -> None:
        with record_function("part: masks and negatives"):
            model_input = task.prepare(batch, 0.0, generator)
        with record_function("part: forward pass and loss"):
            loss = task.loss(model, model_input, StepContext(0.0, hidden, hidden))
        with record_function("part: backward pass"):
            loss.value.backward()  # type: ignore[no-untyped-call]
        with record_function("part: clipping and optimizer"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def their_step() -> None:
        mask_BF, negative_BFK = collated(peer, len(inputs_BT), inputs_BT.shape[1], inputs_BT.device)
        peer(inputs_BT, mask_time_indices=mask_BF, sampled_negative_indices=negative_BFK).loss.backward()
        divided(peer, float(mask_BF.sum()))
        norms = [weight.grad.norm(2).item() ** 2 for weight in peer.parameters() if weight.grad is not None]
        assert sum(norms) >= 0
        peer_optimizer.step()
        peer_optimizer.zero_grad()

    return {"theirs": their_step, "ours": our_step}


def name_parts(model: PreTrainedModel) -> None:
    """Let a profile know what the forward passes of the parts of a wav2vec 2.0 take."""
    from torch.profiler import record_function

    parts = [
        ("feature encoder", model.wav2vec2.feature_extractor),
        ("projection of the features", model.wav2vec2.feature_projection),
        ("positional convolution", model.wav2vec2.encoder.pos_conv_embed),
        *(("layers", layer) for layer in model.wav2vec2.encoder.layers),
    ]
    for name, part in parts:
        ranges: list[Any] = []
        part.register_forward_pre_hook(lambda *_, name=name, ranges=ranges: begin(ranges, f"part: forward, {name}"))
        part.register_forward_hook(lambda *_, ranges=ranges: ranges.pop().__exit__(None, None, None))

    def begin(ranges: list[Any], name: str) -> None:
        ranges.append(record_function(name))
        ranges[-1].__enter__()


KINDS = {
    "products of matrices": ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm"),
    "convolutions": ("aten::mkldnn_convolution", "aten::convolution", "aten::_slow_conv2d_forward"),
    "attention": ("aten::_scaled_dot_product_flash_attention_for_cpu",),
    "norms": ("aten::native_layer_norm", "aten::native_group_norm"),
    "activations": ("aten::gelu", "aten::_softmax", "aten::_log_softmax"),
    "dropout": ("aten::bernoulli_", "aten::native_dropout"),
    "optimizer": ("aten::_fused_adamw_",),
    "copies": ("aten::copy_", "aten::zero_", "aten::fill_", "aten::cat", "aten::index_select", "aten::gather"),
}
"""Operations by what they are for; `_backward` ones count as theirs, and all others as `elementwise and others`."""


def profile(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of one step of ours by part and by kind of operation; the speed of its products beside large ones."""
    import torch
    from torch.profiler import ProfilerActivity

    step, peak = steps(args)["ours"], large_product_flops()
    step()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    events = profiler.key_averages(group_by_input_shape=True)
    seconds_of = dict.fromkeys([*KINDS, "elementwise and others"], 0.0)
    flops = 0.0
    for event in events:
        if event.key.startswith("part: "):
            continue
        name = event.key.removesuffix("_backward").replace("_for_cpu", "")
        kind = next((kind for kind, names in KINDS.items() if name in {n.replace("_for_cpu", "") for n in names}), None)
        seconds_of[kind or "elementwise and others"] += event.self_cpu_time_total / 1e6
        if kind == "products of matrices":
            flops += event.count * product_flops(event.input_shapes)
    product_s = seconds_of["products of matrices"]
    by_name = {event.key: event for event in profiler.key_averages()}
    parts_s = {key: event.cpu_time_total / 1e6 for key, event in by_name.items() if key.startswith("part: ")}
    return {
        "seconds_of": seconds_of,
        "parts": {key.removeprefix("part: "): seconds for key, seconds in parts_s.items()},
        "products": {
            "share_of_the_step": product_s / sum(seconds_of.values()),
            "gflops": flops / product_s / 1e9,
            "peak_gflops": peak / 1e9,
            "share_of_peak": flops / product_s / peak,
        },
        "operations": {
            event.key: event.self_cpu_time_total / 1e6
            for event in sorted(by_name.values(), key=lambda event: -event.self_cpu_time_total)[:30]
        },
    }


def product_flops(shapes: list[list[int]]) -> float:
    """Multiplications and additions of a product of matrices, whose shapes are the last two of an operation."""
    *_, left, right = [shape for shape in shapes if len(shape) >= 2]
    return 2.0 * math.prod(left) * right[-1]


def large_product_flops() -> float:
    """Operations a second of a product of two large matrices, the best of ten."""
    import torch

    matrix_NN = torch.randn(2048, 2048)
    took_s = []
    for _ in range(10):
        start_s = time.process_time()
        _ = matrix_NN @ matrix_NN
        took_s.append(time.process_time() - start_s)
    return 2 * 2048**3 / min(took_s)


def heads(args: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """All behind the encoder, which is replaced in both by what it would give."""
    import torch
    from transformers.modeling_outputs import Wav2Vec2BaseModelOutput

    from voxstill.training.task import StepContext

    own_model, peer_model, cfg = models(args.size, dropout=0.0)
    task, batch = task_of(own_model, cfg), audio(args)
    device = batch.audio_BT.device
    generator = torch.Generator(device)
    frames = int(task.frontend.num_frames(batch.audio_BT.shape[1]))
    hidden = int(task.masks.num_masked(batch.audio_len_B).sum())
    outputs = {
        "last_hidden_state": torch.randn(args.batch, frames, own_model.config.hidden_size, device=device),
        "extract_features": torch.randn(args.batch, frames, own_model.config.conv_dim[-1], device=device),
    }
    for output in outputs.values():
        output.requires_grad_()
    for model in (own_model, peer_model):
        model.wav2vec2.forward = lambda *_, **__: Wav2Vec2BaseModelOutput(**outputs)
    mask_BF, negative_BFK = collated(peer_model, args.batch, batch.audio_BT.shape[1], device)
    model_input = task.prepare(batch, 0.0, generator)

    def our_head() -> None:
        task.loss(own_model, model_input, StepContext(0.0, hidden, hidden)).value.backward()  # type: ignore[no-untyped-call]

    def their_head() -> None:
        peer_model(model_input.inputs, mask_time_indices=mask_BF, sampled_negative_indices=negative_BFK).loss.backward()

    return {"theirs": their_head, "ours": our_head}


def blocks(args: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """The contrastive loss alone, from what is predicted and what is to be; negatives are drawn before."""
    import torch
    from torch.nn import functional

    from voxstill.nn import contrastive

    model, peer, _ = models(args.size, dropout=0.0)
    device = next(model.parameters()).device
    num_samples = int(args.seconds * 16_000)
    mask_BF, negative_BFK = collated(peer, args.batch, num_samples, device)
    frames, wide = mask_BF.shape[1], model.config.proj_codevector_dim
    generator = torch.Generator(device).manual_seed(0)
    frames_B = torch.full((args.batch,), frames, device=device)
    num_B = contrastive.num_masked(frames_B, 0.65, LENGTH, 2)
    place_BM, _ = contrastive.masked_positions(contrastive.draw_mask(frames_B, num_B, LENGTH, generator), num_B)
    negative_BMK = contrastive.negatives(num_B, NEGATIVES, generator)
    code_BF = torch.randint(0, 320**2, (args.batch, frames), device=device)
    predicted_BFD, targets_BFD = (
        torch.randn(args.batch, frames, wide, device=device).requires_grad_() for _ in range(2)
    )
    at_BMD = place_BM[..., None].expand(-1, -1, wide)

    def our_block() -> None:
        own_BMD = predicted_BFD.gather(1, at_BMD), targets_BFD.gather(1, at_BMD)
        code_BM = code_BF.gather(1, place_BM)
        loss_BM, *_ = contrastive.info_nce(own_BMD[0], own_BMD[1], code_BM, negative_BMK, 0.1)
        loss_BM.sum().backward()  # type: ignore[no-untyped-call]

    def their_block() -> None:
        negatives_KBFD = targets_BFD.reshape(-1, wide)[negative_BFK.flatten()]
        negatives_KBFD = negatives_KBFD.view(args.batch, frames, -1, wide).permute(2, 0, 1, 3)
        logits_NBF = peer.compute_contrastive_logits(targets_BFD[None], negatives_KBFD, predicted_BFD, 0.1)
        same_KBF = (targets_BFD == negatives_KBFD).all(-1)
        if same_KBF.any():
            logits_NBF[1:][same_KBF] = -torch.inf
        wanted_BF = (1 - mask_BF) * -100
        loss = functional.cross_entropy(logits_NBF.permute(1, 2, 0).flatten(0, 1), wanted_BF.flatten(), reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]

    return {"theirs": their_block, "ours": our_block}


# ----------------------------------------------------------------------------------------------------------- the same


def right() -> dict[str, float]:
    """Relative differences from the sum of all batches divided by all hidden frames, which is what is wanted."""
    import torch

    from voxstill.nn import contrastive
    from voxstill.tasks.pretrain import MaskedInput
    from voxstill.training.task import StepContext

    model, peer, cfg = models("tiny", dropout=0.0, exact=True)
    device = next(model.parameters()).device
    config = model.config
    generator = torch.Generator(device).manual_seed(0)
    groups, codes = config.num_codevector_groups, config.num_codevectors_per_group
    wanted: dict[str, Any] = {}
    rule: dict[str, Any] = {}
    total, our_total, all_hidden = 0.0, 0.0, 0
    batches = []
    for seconds in (2.0, 6.0):  # a batch of short ones and one of long ones
        samples_BT = torch.randn(2, int(seconds * 16_000), generator=generator, device=device)
        len_B = torch.full((2,), samples_BT.shape[1], device=device)
        frames_B = model._get_feat_extract_output_lengths(len_B)
        num_B = contrastive.num_masked(frames_B, 0.65, LENGTH, 2)
        hidden_BF = contrastive.draw_mask(frames_B, num_B, LENGTH, generator)
        place_BM, own_BM = contrastive.masked_positions(hidden_BF, num_B)
        negative_BMK = contrastive.negatives(num_B, NEGATIVES, generator)
        batches.append((samples_BT, len_B, hidden_BF, place_BM, own_BM.float(), negative_BMK))
        all_hidden += int(num_B.sum())
    for number, (samples_BT, len_B, hidden_BF, place_BM, weight_BM, negative_BMK) in enumerate(batches):
        row_B11 = torch.arange(2, device=device)[:, None, None]
        negative_BFK = torch.zeros(*hidden_BF.shape, NEGATIVES, dtype=torch.long, device=device)
        at_BMK = place_BM.gather(1, negative_BMK.flatten(1)).view_as(negative_BMK) + row_B11 * hidden_BF.shape[1]
        negative_BFK.scatter_(1, place_BM[..., None].expand(-1, -1, NEGATIVES), at_BMK)
        with seeded_before(peer.quantizer, number):  # layers before it draw numbers, too; versions differ in how many
            loss = peer(samples_BT, mask_time_indices=hidden_BF, sampled_negative_indices=negative_BFK).loss
        loss.backward()
        total += float(loss.detach()) / all_hidden
        for name, weight in peer.named_parameters():
            part = weight.grad / all_hidden
            wanted[name] = wanted.get(name, 0) + part
            rule[name] = (rule.get(name, 0) + weight.grad / len(batches)) / int(weight_BM.sum())
            weight.grad = None
        torch.manual_seed(number)
        noise = -torch.empty(hidden_BF.numel() * groups, codes, device=device).exponential_().log()
        noise_BFGV = noise.view(*hidden_BF.shape, groups, codes)
        noise_BMGV = noise_BFGV.gather(1, place_BM[..., None, None].expand(-1, -1, groups, codes))
        task = task_of(model, cfg)
        none: Any = None
        drawn = (negative_BMK, noise_BMGV)
        model_input = MaskedInput(none, samples_BT, len_B, none, hidden_BF, place_BM, weight_BM, drawn=drawn)
        loss = task.loss(model, model_input, StepContext(0.0, all_hidden, all_hidden)).value
        loss.backward()  # type: ignore[no-untyped-call]
        our_total += float(loss.detach())
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    return {
        "loss": abs(our_total - total) / total,
        "gradient": relative_difference(gradients, wanted),
        "gradient_by_the_rule_of_the_example": relative_difference(rule, wanted),
    }


@contextlib.contextmanager
def seeded_before(module: torch.nn.Module, seed: int) -> Iterator[None]:
    """Set the seed of all random numbers before each forward pass of the module."""
    import torch

    def set_seed(*_: object) -> None:
        torch.manual_seed(seed)

    hook = module.register_forward_pre_hook(set_seed)
    try:
        yield
    finally:
        hook.remove()


def relative_difference(gradients: dict[str, Any], wanted: dict[str, Any]) -> float:
    """The length of the difference of two gradients, by the length of the second."""
    difference = sum(float((gradients[name] - gradient).square().sum()) for name, gradient in wanted.items())
    return float((difference / sum(float(gradient.square().sum()) for gradient in wanted.values())) ** 0.5)


if __name__ == "__main__":
    main()
