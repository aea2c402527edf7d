"""A type checker finds a wrong argument to `map` or `sum` before anything runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import corymb

GOOD = """
from torch import Tensor

from corymb.core.client import Client, Share, on_client
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.core.federation import Federation, each
from corymb.local import Descent, descend, losses, one_hot
from corymb.trees import Params, count, take


@on_client
def choose_and_train(client: Client, models: Params, *, local: Descent) -> Share[Tensor]:
    fit = losses(client, models)
    label = fit.argmin()
    model = descend(client, take(models, label), local)
    return Share(model, weight=one_hot(label, count(models)), label=label, note=fit[label])


@on_client
def losses_of(client: Client, models: Params) -> Tensor:
    return losses(client, models)


@on_client
def shift(client: Client, own: Params, by: float) -> Params:
    return {name: value + by for name, value in own.items()}


def one_round(fed: Federation, models: Params) -> Params:
    fits: Tensor = fed.clients.map(losses_of, models).value
    own: Params = fed.clients.map(shift, each(models), 0.5).value
    replies = fed.clients.sample(3).sum(choose_and_train, models, local=Descent(lr=0.1))
    note: Tensor = replies.value.note
    print(fits.shape, own.keys(), note.mean())
    return replies.value.mean(empty=models)


def both(loop: LoopEngine, many: VectorisedEngine) -> list[Federation]:
    return [Federation(loop), Federation(many)]
"""
BAD = """
from torch import Tensor

from corymb.core.federation import Federation
from corymb.local import Descent
from corymb.trees import Params

from good import choose_and_train, losses_of, shift


def one_round(fed: Federation, models: Params) -> None:
    fed.clients.sum(choose_and_train, models, locals=Descent())  # wrong: no such option
    fed.clients.sum(choose_and_train, models, local=0.1)  # wrong: not a Descent
    fed.clients.sum(choose_and_train, models)  # wrong: an option is missing
    fed.clients.sum(choose_and_train, models, local=Descent())
    fed.clients.sum(losses_of, models)  # wrong: returns no Share
    fed.clients.map(losses_of, 3)  # wrong: not models
    fed.clients.map(losses_of, models, models)  # wrong: one argument too many
    fed.clients.map(shift, models, "much")  # wrong: not a number
    fed.clients.map(shift, models, 1.0)
    fed.clients.map(lambda client: client)  # wrong: not marked as a client function
    number: int = fed.clients.map(losses_of, models).value  # wrong: a tensor
    note: str = fed.clients.sum(choose_and_train, models, local=Descent()).value.note  # wrong: a tensor
    print(number, note)
    fed.engine  # wrong: no path leads there
"""


def test_a_type_checker_finds_wrong_arguments(tmp_path, request):
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    source = Path(corymb.__file__).parent.parent
    options = ["--strict", "--follow-imports=silent", "--no-error-summary", "--hide-error-context"]
    cache = request.config.cache.mkdir("mypy")  # the second time it takes a tenth
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", *options, f"--cache-dir={cache}", "good.py", "bad.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^(\w+\.py):(\d+): error: ", done.stdout, re.MULTILINE)
    wrong = [("bad.py", str(n)) for n, line in enumerate(BAD.splitlines(), 1) if "# wrong" in line]
    assert sorted(set(found)) == sorted(wrong), done.stdout + done.stderr
    assert done.returncode == 1
