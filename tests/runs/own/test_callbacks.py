import pytest
import torch

import corymb
from corymb.local import Descent
from corymb.runs.fit import fit
from corymb.settings import InvalidInput
from tests.runs import small

FAST = corymb.IFCA(k=2, rounds=4, local=Descent(lr=0.3, steps=2))


class Diary:
    def __init__(self, stop: int = 99, error: int = 99) -> None:
        self.lines, self.stop, self.error = [], stop, error

    def on_start(self, start):
        self.lines.append(("start", len(start.names), start.config["algorithm"], start.rounds, start.done))

    def on_round(self, row):
        self.lines.append(("round", row["clock"]))
        if row["clock"] == self.error:
            raise MemoryError("the user's own")

    def on_evaluation(self, row):
        self.lines.append(("evaluation", row["clock"], sorted(row["metrics"])[0]))
        if row["clock"] == self.stop:
            raise corymb.StopRun

    def on_end(self, run):
        self.lines.append(("end", run.stopped))


def test_hooks_are_called_in_order_each_with_its_own():
    diary, rounds = Diary(), []
    fit(FAST, small.arrays(), callbacks=[diary, lambda row: rounds.append(row["clock"])], evaluate_every=2)
    assert diary.lines == [
        ("start", 6, "ifca", 4, 0),
        ("round", 1),
        ("round", 2),
        ("evaluation", 2, "test_accuracy"),
        ("round", 3),
        ("round", 4),
        ("evaluation", 4, "test_accuracy"),
        ("end", ""),
    ]
    assert rounds == [1, 2, 3, 4]


def test_a_callback_stops_a_run_which_can_continue(tmp_path):
    diary = Diary(stop=2)
    run = fit(FAST, small.arrays(), callbacks=diary, evaluate_every=1, out=tmp_path / "run", checkpoint_every=3)
    assert (run.stopped, len(run.history), diary.lines[-1]) == ("callback", 2, ("end", "callback"))
    assert corymb.Run.load(tmp_path / "run").stopped == "callback"
    again = Diary()
    whole = fit(FAST, small.arrays(), resume=tmp_path / "run", callbacks=again)
    assert again.lines[0] == ("start", 6, "ifca", 4, 2)
    want = fit(FAST, small.arrays(), evaluate_every=1)
    assert all(torch.equal(whole.models[name], want.models[name]) for name in want.models)


def test_an_error_in_a_callback_is_the_users_and_comes_after_a_checkpoint(tmp_path):
    with pytest.raises(MemoryError, match="the user's own"):
        fit(FAST, small.arrays(), callbacks=Diary(error=2), out=tmp_path / "run", checkpoint_every=3)
    assert [row["clock"] for row in corymb.Run.load(tmp_path / "run").history] == [1, 2]


class Misspelt:
    def on_rounds(self, row):
        pass


@pytest.mark.parametrize(
    ("callback", "line"),
    [
        (Misspelt(), "no hook 'on_rounds'. Did you mean 'on_round'"),
        (3, "a int: wanted a function"),
        (Diary, "the class Diary: wanted"),
    ],
)
def test_an_invalid_callback_is_refused_before_anything_is_written(callback, line, tmp_path):
    with pytest.raises(InvalidInput, match=line):
        fit(FAST, small.arrays(), callbacks=[callback], out=tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()
