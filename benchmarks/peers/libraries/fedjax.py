"""FedJAX: `federated_averaging`, and `hyp_cluster` for IFCA, on its default backend (one jitted step a batch)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.peers.work import Laps, Model, Task

jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 was written for a jax that had it
import fedjax  # noqa: E402
from fedjax.algorithms import fed_avg, hyp_cluster  # noqa: E402

PACKAGES = ("fedjax", "jax")


class Client:
    """A client's data in the form that FedJAX expects, with the same batches as for all libraries."""

    def __init__(self, task: Task, round: int, i: int) -> None:
        self.task, self.round, self.i = task, round, i

    def __len__(self) -> int:
        return 1  # all clients have the same weight

    def shuffle_repeat_batch(self, *_: Any) -> list[dict[str, np.ndarray]]:
        """The batch of each step."""
        return [{"x": x, "y": y} for x, y in self.task.batches(self.round, self.i)]

    def padded_batch(self, how: Any) -> Iterable[Any]:
        """All examples, for choosing a model."""
        x, y = self.task.client(self.i)
        return fedjax.ClientDataset({"x": x, "y": y}).padded_batch(how)


def mlp(params: list[Any], x: Any) -> Any:
    w1, b1, w2, b2 = params
    return jax.nn.relu(x @ w1 + b1) @ w2 + b2


def cnn(params: list[Any], x: Any) -> Any:
    for w, b in (params[:2], params[2:4]):
        x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.lax.reduce_window(jax.nn.relu(x + b), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return mlp(params[4:], x.reshape(len(x), -1))


# jax on a CPU is fastest with channels last and weights that are not transposed at every step.


def to_jax(model: Model) -> list[Any]:
    """Convert parameters to the layout of these networks."""
    if len(model) == 4:
        return [jnp.asarray(a.T) for a in model]
    first = model[4].reshape(-1, 64, 7, 7).transpose(0, 2, 3, 1).reshape(len(model[4]), -1)
    return [
        *(jnp.asarray(a.transpose(2, 3, 1, 0) if a.ndim == 4 else a) for a in model[:4]),
        *to_jax([first, *model[5:]]),
    ]


def from_jax(params: list[Any]) -> Model:
    """The reverse of `to_jax`."""
    arrays = [np.asarray(p) for p in params]
    if len(arrays) == 4:
        return [a.T for a in arrays]
    first, *rest = from_jax(arrays[4:])
    first = first.reshape(-1, 7, 7, 64).transpose(0, 3, 1, 2).reshape(len(first), -1)
    return [*(a.transpose(3, 2, 0, 1) if a.ndim == 4 else a for a in arrays[:4]), first, *rest]


def run(task: Task, folder: Path, threads: int, laps: Laps) -> list[Model]:
    """The models after all rounds."""
    case, predict = task.case, mlp if task.case.network == "mlp" else cnn
    if case.network == "cnn":
        task = Task(
            case, np.ascontiguousarray(task.x.transpose(0, 2, 3, 1)), task.y, task.offsets, task.start, task.order
        )

    def losses(params: Any, batch: Any, rng: Any) -> Any:
        scores = jax.nn.log_softmax(predict(params, batch["x"]))
        return -jnp.take_along_axis(scores, batch["y"][:, None], axis=1)[:, 0]

    local, server = fedjax.optimizers.sgd(case.lr), fedjax.optimizers.sgd(1.0)
    hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=case.batch or case.examples)
    if case.k:
        choosing = fedjax.PaddedBatchHParams(batch_size=case.examples)
        algorithm = hyp_cluster.hyp_cluster(losses, local, server, choosing, hparams)
        state = algorithm.init([to_jax(model) for model in task.start])
    else:
        grad = jax.jit(jax.grad(lambda *args: losses(*args).mean()))
        algorithm = fed_avg.federated_averaging(grad, local, server, hparams)
        state = algorithm.init(to_jax(task.start[0]))
    keys = list(jax.random.split(jax.random.PRNGKey(0), case.clients))
    laps.begin()
    for t in range(case.rounds):
        state, _ = algorithm.apply(state, [(i, Client(task, t, i), keys[i]) for i in range(case.clients)])
        jax.block_until_ready(state.cluster_params if case.k else state.params)
        laps.lap()
    return [from_jax(params) for params in (state.cluster_params if case.k else [state.params])]
