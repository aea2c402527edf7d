"""Small data like a user's: tables in raw units, with two hidden groups of clients."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from corymb.data import as_dataset

HEADER = "age,dose,outcome"


def arrays(clients: int = 6, rows: int = 20, seed: int = 0):
    """(x, y, client): ages in years, doses in milligrams; the two groups answer to age in opposite ways."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), rows)
    x = np.stack([rng.uniform(20, 90, clients * rows), rng.uniform(0, 5000, clients * rows)], axis=1)
    z = (x[:, 0] - 55) / 20 * np.where(client % 2, 1, -1) + (x[:, 1] - 2500) / 4000
    return x, (z > 0).astype(int), client


def prices(clients: int = 6, rows: int = 30, seed: int = 0):
    """(x, y, client): area and distance against a price; noise of 1000."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), rows)
    x = np.stack([rng.uniform(20, 200, clients * rows), rng.uniform(0, 30, clients * rows)], axis=1)
    slope = np.where(client % 2, 3000.0, 1000.0)
    return x, 200_000 + slope * x[:, 0] - 4000 * x[:, 1] + 1000 * rng.normal(size=len(x)), client


def folder(place: Path, clients: int = 6, rows: int = 20) -> Path:
    """A csv file for each client, with text labels."""
    place.mkdir()
    x, y, client = arrays(clients, rows)
    for number in range(clients):
        mine = client == number
        lines = [f"{a:.2f},{d:.1f},{'well' if c else 'ill'}" for (a, d), c in zip(x[mine], y[mine], strict=True)]
        (place / f"hospital-{number}.csv").write_text("\n".join([HEADER, *lines, ""]))
    return place


def out_of_range(client: int = 3):
    """Prices with a client that cannot be scored: its test prices are so high that squared errors are infinite."""
    data = as_dataset(prices(), seed=0)
    y = data.test.y.clone()
    y[int(data.test.offsets[client]) : int(data.test.offsets[client + 1])] = 1e30
    return replace(data, test=data.test._replace(y=y), names=tuple(f"client-{name}" for name in data.names))


def ill_conditioned(clients: int = 12, rows: int = 20, seed: int = 0):
    """Regression in which one client has few rows, far out along one direction: far steeper than all others."""
    rng = np.random.default_rng(seed)
    client = np.concatenate([np.zeros(5, int), np.repeat(np.arange(1, clients), rows)])
    x = rng.normal(size=(len(client), 8))
    x[:5] += 25 * rng.normal(size=(5, 1))
    y = x @ np.linspace(-1, 1, 8) + (client % 2) + 0.3 * rng.normal(size=len(client))
    return as_dataset((x, y, client), seed=0)
