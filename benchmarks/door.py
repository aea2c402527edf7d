"""Memory at the door: how much of thousands of one-client parts of k models is held at once.

    python benchmarks/door.py [--parts 2000] [--k 4] [--parameters 250000] [--json FILE]

Each part is made when the door asks for the next one, as messages arrive. The result is the largest growth of the
process's resident memory while they are taken in, as a multiple of one part. If all parts were kept, it would be the
number of parts.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from corymb.core.client import Client, Share, on_client
from corymb.core.engine import Call, Part
from corymb.core.federation import Federation
from corymb.core.sums import Sums
from corymb.local import one_hot


@on_client
def send(client: Client) -> Share[tuple[()]]:
    """Never run: the parts are made below."""
    return Share({}, one_hot(torch.tensor(0), 1))


class Arriving:
    """An engine in which each client is a host of its own, and parts are made one by one."""

    def __init__(self, parts: int, k: int, parameters: int) -> None:
        self.names = self.hosts = [f"client-{i}" for i in range(parts)]
        self.sizes = torch.ones(parts, dtype=torch.int64)
        self.k, self.parameters, self.objective = k, parameters, None

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        for client in ids.tolist():
            label = client % self.k
            weight = one_hot(torch.tensor(label), self.k)
            total = torch.zeros(self.k, self.parameters)
            total[label] = 1.0
            yield Part(
                torch.tensor([client]), Sums({"w": total}, weight, torch.tensor([label]), ()), [], f"client-{client}"
            )


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, default=2000)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--parameters", type=int, default=250_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    fed = Federation(Arriving(given.parts, given.k, given.parameters))  # type: ignore[arg-type]
    fed.clients[:2].sum(send)  # what a first call loads is not what parts take
    before = peak()
    replies = fed.clients.sum(send)
    one = given.k * given.parameters * 4
    assert len(replies.clients) == given.parts
    assert replies.value.weight.sum() == given.parts
    result = {"parts": given.parts, "one_part_bytes": one, "growth_in_parts": round((peak() - before) / one, 2)}
    print(f"{given.parts} parts of {one / 2**20:.1f} MiB: memory grew by {result['growth_in_parts']} parts")
    if given.json:
        given.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
