"""Flower's simulation: its FedAvg strategy, a `ClientApp` with a plain loop of torch, as many Ray actors as threads."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import Any

import torch
from benchmarks.peers.networks import network, of, put
from benchmarks.peers.work import Laps, Model, Task
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

PACKAGES = ("flwr", "ray", "torch")
FOLDER = "CORYMB_PEERS_WORK"
client_app = ClientApp()


@functools.cache
def kept() -> tuple[Task, nn.Module]:
    """The work and a network, loaded once in every actor."""
    torch.set_num_threads(1)
    task = Task.load(Path(os.environ[FOLDER]), mapped=True)
    return task, network(task.case.network)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """A client's steps."""
    task, module = kept()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=task.case.lr)
    round = int(message.content["config"]["server-round"]) - 1
    for x, y in task.batches(round, int(context.node_config["partition-id"])):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(torch.tensor(x)), torch.tensor(y)).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": 1})  # all clients have the same weight
    content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def run(task: Task, folder: Path, threads: int, laps: Laps) -> list[Model]:
    """The models after all rounds."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.environ[FOLDER] = str(folder.resolve())
    module = put(network(task.case.network), task.start[0])
    n, rounds = task.case.clients, task.case.rounds
    del task  # the server needs no examples
    server_app, done = ServerApp(), []

    def after(number: int, arrays: ArrayRecord) -> None:
        laps.lap() if number else laps.begin()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
        first = ArrayRecord(module.state_dict())
        done.append(strategy.start(grid, first, num_rounds=rounds, evaluate_fn=after).arrays)

    backend: dict[str, Any] = {
        "init_args": {"num_cpus": threads, "include_dashboard": False, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app, client_app, num_supernodes=n, backend_config=backend)
    module.load_state_dict(done[0].to_torch_state_dict())
    return [of(module)]
