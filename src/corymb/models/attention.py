"""Attention whose dropout goes through `torch.nn.functional.dropout`, where it can draw from keys.

Torch's own functions drop weights inside: these compute the same by attention's definition, with the same arguments.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, pad

from corymb.settings import InvalidInput, require


class PositionsFirst(nn.Module):
    """`nn.Dropout` in a transformer without `batch_first`: keyed draws need examples on the first axis."""

    def __init__(self, layer: nn.Dropout) -> None:
        super().__init__()
        self.p = layer.p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x.transpose(0, 1), self.p, self.training).transpose(0, 1)


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
    """`torch.nn.functional.scaled_dot_product_attention`."""
    if enable_gqa:
        heads = query.shape[-3]
        key, value = (t.repeat_interleave(heads // t.shape[-3], -3) for t in (key, value))
    if is_causal:
        require(attn_mask is None, "The model's attention has is_causal=True and an attn_mask: give one of them.")
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return dropout(_weights(query, key, attn_mask, scale), dropout_p) @ value


def attend_by_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`torch.nn.functional.multi_head_attention_forward`, which `nn.MultiheadAttention` calls.

    Inputs and output have positions first. `is_causal` hints that `attn_mask` is causal, and needs one, as in torch.
    """
    if query.dim() != 3:
        raise InvalidInput(
            f"The model's attention with dropout has a query of shape {list(query.shape)}: wanted examples, positions "
            "and features (in the order of batch_first)."
        )
    require(attn_mask is not None or not is_causal, "The model's attention has is_causal=True: give attn_mask, too.")
    apart = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    q, k, v = _projected((query, key, value), in_proj_weight, in_proj_bias, apart)
    if bias_k is not None and bias_v is not None:
        k, v = (torch.cat([t, own.expand(len(t), -1, -1)], 1) for t, own in ((k, bias_k), (v, bias_v)))
    q, k, v = (t.unflatten(-1, (num_heads, -1)).transpose(1, 2) for t in (q, k, v))  # m heads l e
    k, v = (
        t if static is None else static.unflatten(0, (-1, num_heads)) for t, static in ((k, static_k), (v, static_v))
    )
    if add_zero_attn:
        k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
    mask = _merged(attn_mask, key_padding_mask, num_heads, q)
    mask = None if mask is None else pad(mask, (0, k.shape[-2] - mask.shape[-1]))  # keys that were added are not masked
    weights = dropout(_weights(q, k, mask, nan_without_keys=need_weights), dropout_p if training else 0.0)
    out = linear((weights @ v).transpose(1, 2).flatten(-2), out_proj_weight, out_proj_bias)
    return out.transpose(0, 1), (weights.mean(1) if average_attn_weights else weights) if need_weights else None


def _weights(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None = None, *, nan_without_keys: bool = False
) -> Tensor:
    """The weight of every key for every query; where `mask` is False, or -inf if it is added, there is none.

    A query without any key gets zeros, or NaN: torch's functions differ in that.
    """
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if mask is None:
        return scores.softmax(-1)
    scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if nan_without_keys:
        return scores.softmax(-1)
    nothing = scores.isneginf().all(-1, keepdim=True)
    return torch.where(nothing, 0, torch.where(nothing, 0, scores).softmax(-1))


def _projected(
    inputs: tuple[Tensor, Tensor, Tensor],
    whole: Tensor | None,
    bias: Tensor | None,
    apart: tuple[Tensor | None, Tensor | None, Tensor | None] | None,
) -> tuple[Tensor, ...]:
    """Queries, keys and values, with examples first, by one weight for all of them or by one for each."""
    weights: Any = apart if apart is not None or whole is None else whole.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return tuple(linear(t.transpose(0, 1), w, b) for t, w, b in zip(inputs, weights, biases, strict=True))


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
