"""FedLab: its standalone pipeline with the serial trainer."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from unittest.mock import MagicMock

import torch

# FedLab imports torchvision for data sets that are not used here; the one it asks pip for brings a CUDA build of torch.
sys.modules.update({name: MagicMock() for name in ("torchvision", "torchvision.datasets", "torchvision.transforms")})
from benchmarks.peers.networks import network, of, put  # noqa: E402
from benchmarks.peers.work import Laps, Model, Task  # noqa: E402
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402
from torch import Tensor  # noqa: E402

PACKAGES = ("fedlab", "torch")


class Clients:
    """A data set in the form that FedLab's trainer expects."""

    def __init__(self, task: Task) -> None:
        self.task, self.round = task, 0

    def get_dataloader(self, i: int, batch_size: int) -> list[tuple[Tensor, Tensor]]:
        """One client's batches, step by step."""
        return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in self.task.batches(self.round, i)]


class Pipeline(StandalonePipeline):
    """FedLab's pipeline, which calls `evaluate` at the end of a round."""

    laps: Laps

    def evaluate(self) -> None:
        """Record only the time."""
        self.laps.lap()
        self.trainer.dataset.round += 1


def run(task: Task, folder: Path, threads: int, laps: Laps) -> list[Model]:
    """The models after all rounds."""
    torch.set_num_threads(threads)
    logging.disable(logging.INFO)
    case, module = task.case, put(network(task.case.network), task.start[0])
    handler = SyncServerHandler(module, case.rounds, sample_ratio=1.0)
    trainer = SGDSerialClientTrainer(module, case.clients)
    trainer.setup_dataset(Clients(task))
    trainer.setup_optim(1, case.batch, case.lr)
    pipeline = Pipeline(handler, trainer)
    pipeline.laps = laps
    laps.begin()
    pipeline.main()
    return [of(handler.model)]
