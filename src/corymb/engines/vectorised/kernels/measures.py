"""Losses and scores of models on the examples of all clients of a stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from corymb.core.client import Examples
from corymb.engines.vectorised.products import Products, onednn_is_faster
from corymb.local.reference import weighted_mean
from corymb.trees import Params, take

OfExamples = Callable[[Params, Examples], Tensor]


def rows_one_by_one(of: OfExamples, models: Params, clients: Iterable[Examples], *, shared: bool) -> list[Tensor]:
    """A function of each client's models, or of those that all share, and of its examples."""
    return [of(models if shared else take(models, i), client) for i, client in enumerate(clients)]


def padded(rows: list[Tensor], longest: int) -> Tensor:
    """Rows for the examples of each client, as one tensor with zeros at the end of shorter ones."""
    return torch.stack([torch.cat([row, row.new_zeros(longest - len(row), *row.shape[1:])]) for row in rows])


def measure_shared(per_example: OfExamples, models: Params, on: Examples, rows: int) -> Tensor:
    """All examples of all clients in blocks of `rows`, through one model after another; examples are independent."""
    n, m = on.weight.shape
    each = [take(models, j) for j in range(next(iter(models.values())).shape[0])]
    flat = zip(*(t.flatten(0, 1).split(rows) for t in on), strict=True)
    per_block = [torch.stack([per_example(model, Examples(*block)) for model in each]) for block in flat]
    values = torch.cat(per_block, dim=1).reshape(len(each), n, m)
    return torch.stack([weighted_mean(of_model, on.weight) for of_model in values], dim=1)


def measure_own(per_example: OfExamples, models: Params, on: Examples) -> Tensor:
    """The examples of each client through one of its k models after another."""
    k = next(iter(models.values())).shape[1]
    run = vmap(lambda params, examples: weighted_mean(per_example(params, examples), examples.weight))
    return torch.stack([run({name: value[:, j] for name, value in models.items()}, on) for j in range(k)], dim=1)


def large_products(device: str, *, mixed: bool) -> AbstractContextManager[Any]:
    """The mode for a forward pass of one model on the examples of many clients."""
    return Products() if device == "cpu" and not mixed and onednn_is_faster() else nullcontext()
