"""Kernels for the attention of the Conformer on a GPU: its queries, and the shift of relative positions.

Sums over rows are in fp32 and come as one part for each program; who launches adds them up, so equal inputs give equal
bits. Triton comes with torch for CUDA.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def queries_kernel(
    all_N3E: tl.tensor,
    content_E: tl.tensor,
    position_E: tl.tensor,
    query_NE: tl.tensor,
    positional_NE: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Write queries with the bias of content, and with that of positions; keys and values follow them in their rows."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, LANES)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    query = tl.load(all_N3E + row[:, None] * 3 * WIDTH + column[None, :], mask=inside, other=0.0).to(tl.float32)
    content = tl.load(content_E + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    position = tl.load(position_E + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    at = row[:, None] * WIDTH + column[None, :]
    element = query_NE.dtype.element_ty
    tl.store(query_NE + at, (query + content[None, :]).to(element), mask=inside)
    tl.store(positional_NE + at, (query + position[None, :]).to(element), mask=inside)


@triton.jit(do_not_specialize=["rows", "tiles"])  # type: ignore[untyped-decorator]
def join_gradients_kernel(
    grad_query_NE: tl.tensor,
    grad_key_NE: tl.tensor,
    grad_value_NE: tl.tensor,
    grad_positional_HNK: tl.tensor,
    grad_N3E: tl.tensor,
    part_P4E: tl.tensor,
    rows: tl.tensor,
    tiles: tl.tensor,
    WIDTH: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Write the gradients of queries, keys and values side by side, and the sums of this program's rows.

    They are the sums for queries in content, keys, values, and queries in positions.
    """
    program = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_content = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    in_keys = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    in_values = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    in_positions = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    element = grad_N3E.dtype.element_ty
    for tile in range(tiles):
        row = ((program * tiles + tile) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
        at = row[:, None] * WIDTH + column[None, :]
        place = ((column // HEAD).to(tl.int64)[None, :] * rows + row[:, None]) * HEAD + (column % HEAD)[None, :]
        query = tl.load(grad_query_NE + at, mask=inside, other=0.0).to(tl.float32)
        key = tl.load(grad_key_NE + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(grad_value_NE + at, mask=inside, other=0.0).to(tl.float32)
        positional = tl.load(grad_positional_HNK + place, mask=inside, other=0.0).to(tl.float32)
        out = grad_N3E + row[:, None] * 3 * WIDTH + column[None, :]
        tl.store(out, (query + positional).to(element), mask=inside)
        tl.store(out + WIDTH, key.to(element), mask=inside)
        tl.store(out + 2 * WIDTH, value.to(element), mask=inside)
        in_content += query
        in_keys += key
        in_values += value
        in_positions += positional
    part, inside_column = part_P4E + program * 4 * WIDTH + column, column < WIDTH
    tl.store(part, tl.sum(in_content, axis=0), mask=inside_column)
    tl.store(part + WIDTH, tl.sum(in_keys, axis=0), mask=inside_column)
    tl.store(part + 2 * WIDTH, tl.sum(in_values, axis=0), mask=inside_column)
    tl.store(part + 3 * WIDTH, tl.sum(in_positions, axis=0), mask=inside_column)


@triton.jit(do_not_specialize=["rows", "frames", "positions", "stride"])  # type: ignore[untyped-decorator]
def shift_kernel(
    score_HNP: tl.tensor,
    is_own_N: tl.tensor,
    out_BHFS: tl.tensor,
    rows: tl.tensor,
    frames: tl.tensor,
    positions: tl.tensor,
    stride: tl.tensor,
    scale: tl.constexpr,
    least: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_G: tl.constexpr,
) -> None:
    """Write the score of each pair of frames from those of relative positions, `least` for keys of padding.

    Position p of query f is of the key f + p - (F - 1) (Dai et al. 2019, "Transformer-XL", appendix B). Rows are
    `stride` apart in what is written.
    """
    query = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    row = (batch * frames + query).to(tl.int64)
    source = (head.to(tl.int64) * rows + row) * positions + frames - 1 - query
    target = (tl.program_id(0).to(tl.int64) * frames + query) * stride
    for start in range(0, frames, BLOCK_G):
        key = start + tl.arange(0, BLOCK_G)
        inside = (query < frames)[:, None] & (key < frames)[None, :]
        own = tl.load(is_own_N + batch * frames + key, mask=key < frames, other=0) != 0
        value = tl.load(score_HNP + source[:, None] + key[None, :], mask=inside & own[None, :], other=0.0)
        value = tl.where(own[None, :], value.to(tl.float32) * scale, least)
        tl.store(out_BHFS + target[:, None] + key[None, :], value.to(out_BHFS.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "frames", "positions", "stride"])  # type: ignore[untyped-decorator]
def shift_backward_kernel(
    grad_BHFS: tl.tensor,
    is_own_N: tl.tensor,
    grad_score_HNP: tl.tensor,
    rows: tl.tensor,
    frames: tl.tensor,
    positions: tl.tensor,
    stride: tl.tensor,
    scale: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_P: tl.constexpr,
) -> None:
    """Write the gradient of the scores of relative positions; those beyond both ends of the audio have none."""
    query = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    row = (batch * frames + query).to(tl.int64)
    target = (head.to(tl.int64) * rows + row) * positions
    source = (tl.program_id(0).to(tl.int64) * frames + query) * stride
    for start in range(0, positions, BLOCK_P):
        position = start + tl.arange(0, BLOCK_P)
        key = query[:, None] + position[None, :] - frames + 1
        inside = (query < frames)[:, None] & (key >= 0) & (key < frames)
        own = inside & (tl.load(is_own_N + batch * frames + key, mask=inside, other=0) != 0)
        grad = tl.load(grad_BHFS + source[:, None] + key, mask=own, other=0.0).to(tl.float32) * scale
        stored = (query < frames)[:, None] & (position < positions)[None, :]
        grad = grad.to(grad_score_HNP.dtype.element_ty)
        tl.store(grad_score_HNP + target[:, None] + position[None, :], grad, mask=stored)
