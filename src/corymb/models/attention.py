"""Attention whose dropout goes through `torch.nn.functional.dropout`, where it can draw from keys."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from corymb.settings import InvalidInput


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, by its definition."""
    if enable_gqa:
        heads = query.shape[-3]
        key, value = (t.repeat_interleave(heads // t.shape[-3], -3) for t in (key, value))
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return _weights(query, key, attn_mask, dropout_p, scale) @ value


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, rate: float, scale: float | None = None) -> Tensor:
    """The weight of every key for every query; where `mask` is False, or -inf if it is added, there is none."""
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        nothing = scores.isneginf().all(-1, keepdim=True)  # a query without any key gets zeros, not NaN
        scores = torch.where(nothing, 0, scores)
        return dropout(torch.where(nothing, 0, scores.softmax(-1)), rate)
    return dropout(scores.softmax(-1), rate)


def drop_by_keys(layer: nn.MultiheadAttention, rate: float) -> None:
    """Let an attention layer drop weights at this rate by `dropout`, not inside torch's own function."""
    if layer.bias_k is not None or layer.add_zero_attn:
        raise InvalidInput(
            f"An attention layer has dropout {rate} and add_bias_kv or add_zero_attn, which are not supported "
            "together: set its dropout to 0, or switch all dropout off with dropout='off'."
        )
    layer.forward = partial(_forward, layer, rate)  # type: ignore[method-assign]


def _forward(
    layer: nn.MultiheadAttention,
    rate: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention.forward`: the same arguments and results."""
    del is_causal  # only a hint that `attn_mask` is causal
    if query.dim() != 3:
        raise InvalidInput(
            f"An attention layer with dropout got a query of shape {list(query.shape)}: wanted examples, positions and "
            "features (in the order of batch_first)."
        )
    inputs = (query, key, value) if layer.batch_first else (t.transpose(0, 1) for t in (query, key, value))
    q, k, v = (
        linear(t, weight, bias).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)  # m heads l e
        for t, (weight, bias) in zip(inputs, _projections(layer), strict=True)
    )
    weights = _weights(q, k, _merged(attn_mask, key_padding_mask, layer.num_heads, q), rate)
    out = layer.out_proj((weights @ v).transpose(1, 2).flatten(-2))
    out = out if layer.batch_first else out.transpose(0, 1)
    return out, (weights.mean(1) if average_attn_weights else weights) if need_weights else None


def _projections(layer: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias for queries, keys and values."""
    own = layer._parameters  # a layer has either one weight for all three, or, for different widths, one for each
    whole, bias = own["in_proj_weight"], own["in_proj_bias"]
    apart = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    weights = apart if whole is None else whole.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return list(zip(weights, biases, strict=True))


def _merged(attn_mask: Tensor | None, key_padding_mask: Tensor | None, heads: int, like: Tensor) -> Tensor | None:
    """Both masks, in which True or -inf leaves a key out, as one that is added to scores: m heads l s."""
    found = None
    for mask, is_padding in ((attn_mask, False), (key_padding_mask, True)):
        if mask is None:
            continue
        added = like.new_zeros(mask.shape).masked_fill(mask, -math.inf) if mask.dtype == torch.bool else mask
        if is_padding:
            added = added[:, None, None]
        elif added.dim() == 3:
            added = added.unflatten(0, (-1, heads))
        found = added if found is None else found + added
    return found
