"""pfl-research: `FederatedAveraging` on its `SimulatedBackend`, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from benchmarks.peers.networks import network, of, put
from benchmarks.peers.work import Laps, Model, Task
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

PACKAGES = ("pfl", "torch")


class WithLoss(nn.Module):
    """A network with the methods that pfl expects."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: Tensor, y: Tensor, **_: Any) -> Tensor:
        """The mean loss of a batch."""
        return nn.functional.cross_entropy(self.module(x), y)

    def metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
        """No metrics, since nothing is evaluated."""
        return {}


class Lap(TrainingProcessCallback):
    """Records the end of each round."""

    def __init__(self, laps: Laps) -> None:
        self.laps, self.rounds = laps, 0

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """Continue, without metrics."""
        self.laps.lap()
        self.rounds += 1
        return False, Metrics()


def run(task: Task, folder: Path, threads: int, laps: Laps) -> list[Model]:
    """The models after all rounds."""
    torch.set_num_threads(threads)
    case, lap = task.case, Lap(laps)
    x, y = torch.from_numpy(task.x), torch.from_numpy(task.y)
    turn = iter(range(10**9))

    def user(i: int) -> Dataset:
        first, last = int(task.offsets[i]), int(task.offsets[i + 1])
        if task.order is None:
            return Dataset([x[first:last], y[first:last]], user_id=str(i))
        rows = torch.from_numpy(task.order[lap.rounds, i].reshape(-1)) + first  # each step takes the next slice
        return Dataset([x[rows], y[rows]], user_id=str(i))

    module = put(network(case.network), task.start[0])
    inner = WithLoss(module)
    model = PyTorchModel(inner, torch.optim.SGD, torch.optim.SGD(inner.parameters(), lr=1.0))
    users = FederatedDataset(user, lambda: next(turn) % case.clients)
    how = NNTrainHyperParams(
        local_num_epochs=case.steps if case.batch is None else 1,
        local_learning_rate=case.lr,
        local_batch_size=case.batch,
    )
    plan = NNAlgorithmParams(
        central_num_iterations=case.rounds,
        evaluation_frequency=10**9,
        train_cohort_size=case.clients,
        val_cohort_size=0,
    )
    laps.begin()
    FederatedAveraging().run(
        algorithm_params=plan,
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=how,
        callbacks=[lap],
    )
    return [of(module)]
