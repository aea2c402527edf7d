"""The server's side of `flwr run`, with nodes in this process behind real Flower messages."""

import json
from types import SimpleNamespace

import pytest

from corymb.engines import LoopEngine
from corymb.engines.node import Node
from corymb.objectives import LinearRegression
from corymb.settings import InvalidInput
from corymb.testing.engines import DOUBLE
from corymb.testing.small_data import regression
from tests.two_packages import ALGORITHM, FUNCTIONS, PLACE, importable

pytest.importorskip("flwr", reason="the extra [flower] is not installed")


def run(allow, folder):
    """Run the algorithm of two packages on two nodes; the folder of its results."""
    from corymb.engines.flower.direct import DirectGrid
    from corymb.flower_app import main

    data, objective = regression(), LinearRegression(3)
    shards = {7: data.at([0, 1, 2]), 8: data.at([3, 4, 5])}
    nodes = {
        number: Node(LoopEngine(objective, shard, DOUBLE), f"node-{number}", allow=allow).answer
        for number, shard in shards.items()
    }
    config = {"algorithm": PLACE, "model": "linear-regression", "nodes": 2, "out": str(folder)}
    main(DirectGrid(nodes), SimpleNamespace(run_config=config, run_id=5))
    return folder / "5"


def test_client_functions_of_a_second_package_run_where_nodes_allow_it(tmp_path, monkeypatch):
    importable(tmp_path, monkeypatch)
    result = json.loads((run((ALGORITHM, FUNCTIONS), tmp_path / "runs") / "result.json").read_text())
    assert (len(result["labels"]), result["rejected"], result["ledger"]["rounds"]) == (6, [], 2)


@pytest.mark.parametrize(("allow", "also"), [((ALGORITHM,), ""), ((), f" other packages too: --allow {ALGORITHM}.")])
def test_nodes_that_do_not_allow_it_say_in_one_line_what_to_add(allow, also, tmp_path, monkeypatch):
    importable(tmp_path, monkeypatch)
    with pytest.raises(InvalidInput) as ended:
        run(allow, tmp_path / "runs")
    message = str(ended.value)
    assert message.startswith(f"No node can run {FUNCTIONS}:train_apart. Node 'node-7': ")
    assert f"--allow {FUNCTIONS} (federation.toml: allow), and restart the node." in message
    assert message.endswith(also or "restart the node.")
    assert "\n" not in message
