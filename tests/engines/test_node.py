"""A node answers every message, runs only what it allows, and discards memory writes of lost replies."""

import errno
import logging

import pytest
import torch

from corymb.core.client import Client, on_client
from corymb.core.engine import START, Call, Version
from corymb.engines import LoopEngine
from corymb.engines import node as node_module
from corymb.engines.node import MOST_SESSIONS, Node
from corymb.engines.node_journal import INDEX, STALE, NodeJournal
from corymb.keys import root
from corymb.messages import call_to_tree
from corymb.objectives import LinearRegression
from corymb.objectives.recipe import recipe_of
from corymb.testing.engines import DOUBLE
from corymb.testing.keeper import count_visits
from corymb.testing.small_data import regression
from corymb.wire import pack, unpack

MODELS = {"weight": torch.zeros(1, 3, dtype=torch.float64)}
N = 4


def node(folder=None, **options):
    objective = LinearRegression(3, dtype=torch.float64)
    return Node(LoopEngine(objective, regression((3, 4, 5, 6)), DOUBLE), "site", folder=folder, **options)


def ask(there, request):
    return unpack(there.answer(pack(request)), ("corymb",))


def opened(there, session="s"):
    request = {"kind": "open", "session": session, "objective": recipe_of(LinearRegression(3))}
    assert ask(there, request) == {"kind": "opened"}
    return there


def visit(version, since=START, fn=count_visits, ids=range(N), **others):
    call = Call(fn, (MODELS,), {}, root(0), "sum", Version(*version), {"": Version(*since)})
    ids = torch.tensor(list(ids))
    return {
        "kind": "call",
        "session": "s",
        "ids": ids,
        "keep": 0,
        "remembers": False,
        "call": call_to_tree(call),
        **others,
    }


def visits(reply):
    assert reply["kind"] == "parts", reply
    return reply["parts"][0]["value"].note.tolist()


@on_client
def not_for_nodes(client: Client, models):
    return models


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"", "too few"),
        (b"garbage that is long enough", "header"),
        (pack([1, 2]), "unknown kind"),
        (pack({"kind": "run this"}), "unknown kind 'run this'"),
        (pack({"kind": "call", "session": "../../etc"}), "names no session"),
        (pack({"kind": "open", "session": "t", "objective": 3}), "does not hold an objective"),
        (pack({"kind": "open", "session": "s", "objective": recipe_of(LinearRegression(2))}), "another objective"),
        (pack(visit((0, 1)) | {"ids": torch.tensor([0, 9])}), "does not have"),
        (pack(visit((0, 1)) | {"ids": torch.tensor([1, 1])}), "does not have"),
        (pack(visit((0, 1)) | {"call": {}}), "not a call"),
    ],
)
def test_every_message_is_answered(message, says):
    reply = unpack(opened(node()).answer(message))
    assert reply["kind"] == "refused"
    assert says in reply["why"]


def test_a_node_introduces_itself():
    hello = ask(node(allow=("mine",)), {"kind": "hello"})
    assert (hello["name"], hello["clients"], hello["sizes"].tolist()) == (
        "site",
        [f"client-{i}" for i in range(N)],
        [3, 4, 5, 6],
    )
    assert hello["allow"] == ["corymb", "mine"]
    assert {"corymb", "torch", "python"} <= set(hello["versions"])
    assert hello["engine"]["precision"] == "float64"
    assert hello["schema"]["task"] == "regression"


def test_only_functions_on_the_allow_list_are_run():
    request = pack(visit((0, 1), fn=not_for_nodes))
    why = unpack(opened(node()).answer(request))["why"]
    assert "tests.engines.test_node:not_for_nodes" in why
    assert "not in a package that may be named here: corymb" in why
    assert "--allow tests (" in why
    allowed = opened(node(allow=("tests",)))
    assert unpack(allowed.answer(request), ("tests", "corymb"))["kind"] == "parts"


@pytest.mark.parametrize("allow", [(), ("__main__",)])
def test_a_function_of_a_script_is_refused_with_advice_that_can_work(allow):
    name = b"tests.engines.test_node:not_for_nodes"
    in_script = b"__main__:not_for_nodes".ljust(len(name), b"_")  # as long, so that the message stays well-formed
    reply = unpack(opened(node(allow=allow)).answer(pack(visit((0, 1), fn=not_for_nodes)).replace(name, in_script)))
    assert reply["never"]
    assert "put it into a module that the node has too" in reply["why"]
    assert "--allow" not in reply["why"]


def test_a_repeated_message_gets_the_same_reply_and_is_run_once():
    there = opened(node())
    first = there.answer(pack(visit((0, 1))))
    assert there.answer(pack(visit((0, 1)))) == first
    assert visits(unpack(first, ("corymb",))) == [1.0] * N
    assert visits(ask(there, visit((0, 2), since=(0, 1)))) == [2.0] * N


def test_the_reply_before_is_released_when_the_next_call_arrives(monkeypatch):
    """It may be as large as the model, and so may the message, which the node does not keep."""
    there, held = opened(node()), []
    there.answer(pack(visit((0, 1))))
    plain = node_module._run
    monkeypatch.setattr(node_module, "_run", lambda *given: held.append(there._sessions["s"].last) or plain(*given))
    there.answer(pack(visit((0, 2), since=(0, 1))))
    assert held == [None]
    assert there._sessions["s"].last is not None


def test_the_log_names_each_session_and_each_function_that_it_was_asked_to_run_once(caplog, monkeypatch):
    monkeypatch.setattr(LinearRegression, "describe", lambda objective: "linear\n  (0): three features")  # as a module
    caplog.set_level(logging.INFO, "corymb.engines.node")
    there = opened(node())
    for clock in (1, 2):
        ask(there, visit((0, clock)))
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "session s opened: linear (0): three features",
        f"session s: {count_visits.name} for {N} clients",
    ]


def test_writes_of_lost_replies_are_discarded_and_late_messages_do_no_harm():
    there = opened(node())
    first, second = visit((0, 1)), visit((0, 2), since=(0, 1))
    assert [visits(ask(there, request))[0] for request in (first, second)] == [1.0, 2.0]
    assert visits(ask(there, visit((1, 1), since=(0, 1)))) == [2.0] * N  # the second reply was lost
    assert visits(ask(there, first)) == [1.0] * N  # delivered again, long after


@pytest.mark.parametrize("late", [False, True])
def test_a_killed_node_resumes_from_its_disk(tmp_path, late):
    there = opened(node(tmp_path))
    for call in range(1, 4):
        ask(there, visit((0, call), since=(0, call - 1)))
    if late:
        ask(there, visit((0, 1)))
    again = node(tmp_path)  # which nobody opens a session at
    assert visits(ask(again, visit((1, 1), since=(0, 3)))) == [4.0] * N
    assert visits(ask(node(tmp_path), visit((1, 1), since=(0, 2)))) == [3.0] * N
    assert ask(again, {"kind": "hello"})["token"] == ask(there, {"kind": "hello"})["token"]


def test_a_line_that_was_cut_short_by_a_kill_is_dropped(tmp_path):
    there = opened(node(tmp_path))
    ask(there, visit((0, 1)))
    index = tmp_path / "s" / INDEX
    whole = index.read_text()
    index.write_text(whole + whole[: len(whole) // 2])
    assert visits(ask(node(tmp_path), visit((0, 2), since=(0, 1)))) == [2.0] * N
    assert all(line.startswith("[[") for line in index.read_text().splitlines())


@pytest.mark.parametrize("folder", [False, True])
def test_only_the_latest_sessions_are_in_memory_and_the_others_on_disk(folder, tmp_path):
    there = node(tmp_path if folder else None)
    names = [f"run-{number}" for number in range(MOST_SESSIONS + 3)]
    for name in names:
        ask(opened(there, name), visit((0, 1)) | {"session": name})
    assert len(there._sessions) == (MOST_SESSIONS if folder else len(names))  # without a folder they would be lost
    again = [visits(ask(there, visit((0, 2), since=(0, 1), remembers=True) | {"session": name})) for name in names]
    assert again == [[2.0] * N] * len(names)


class FullDisk:
    """A disk that has room for so many more bytes."""

    def __init__(self, monkeypatch, room):
        self.room = room
        monkeypatch.setattr("corymb.engines.node_journal._write_all", self.write)

    def write(self, file, data):
        written, self.room = data[: self.room], max(0, self.room - len(data))
        file.write(written)
        if len(written) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("room", [0, 10, "page and half a line"])
def test_a_call_that_does_not_fit_on_the_disk_is_refused_and_the_next_one_that_fits_goes_on(
    room, tmp_path, monkeypatch
):
    there = opened(node(tmp_path))
    ask(there, visit((0, 1)))
    (page,) = (tmp_path / "s").glob("0*.safetensors")
    before = sorted((tmp_path / "s").iterdir())
    disk = FullDisk(monkeypatch, page.stat().st_size + 40 if isinstance(room, str) else room)
    reply = ask(there, visit((0, 2), since=(0, 1)))
    assert (reply["kind"], "disk is full" in reply["why"]) == ("refused", True)
    assert sorted((tmp_path / "s").iterdir()) == before
    disk.room = 10**6
    assert visits(ask(there, visit((1, 1), since=(0, 1)))) == [2.0] * N
    assert visits(ask(node(tmp_path), visit((1, 2), since=(1, 1)))) == [3.0] * N


def test_a_session_that_does_not_fit_on_the_disk_is_not_opened(tmp_path, monkeypatch):
    there, disk = node(tmp_path), FullDisk(monkeypatch, 10)
    request = {"kind": "open", "session": "s", "objective": recipe_of(LinearRegression(3))}
    assert "disk is full" in ask(there, request)["why"]
    disk.room = 10**6
    opened(there)
    assert visits(ask(node(tmp_path), visit((0, 1)))) == [1.0] * N


def test_client_memory_that_was_tampered_with_is_refused(tmp_path):
    ask(opened(node(tmp_path)), visit((0, 1)))
    (page,) = (tmp_path / "s").glob("0*.safetensors")
    page.write_bytes(page.read_bytes()[:-1] + b"!")
    assert "was changed" in ask(node(tmp_path), visit((0, 2), since=(0, 1)))["why"]


def test_a_node_without_its_folder_refuses_calls_that_need_memory():
    fresh = opened(node())
    assert "nothing of client memory at clock 3" in ask(fresh, visit((3, 2), since=(3, 1), remembers=True))["why"]
    assert visits(ask(fresh, visit((3, 2), since=(3, 1)))) == [1.0] * N  # an algorithm that keeps nothing goes on
    assert ask(node(), visit((0, 1)))["unknown"] is True


def test_a_call_may_be_run_for_one_group_of_clients_after_another(tmp_path):
    there = opened(node(tmp_path))
    ask(there, visit((0, 1)))
    some, others = (torch.tensor(places) for places in ([0, 1], [2, 3]))
    ask(there, visit((0, 2), since=(0, 1), only=some))
    there = node(tmp_path)  # the process was ended in between
    reply = ask(there, visit((0, 2), since=(0, 1), only=others, again=True))
    assert reply["parts"][0]["ids"].tolist() == [2, 3]
    assert visits(ask(there, visit((0, 3), since=(0, 2)))) == [3.0] * N
    assert visits(ask(node(tmp_path), visit((0, 3), since=(0, 2)))) == [3.0] * N


def test_obsolete_memory_is_dropped(tmp_path):
    there = opened(node(tmp_path))
    last = START
    for clock in range(STALE + 20):
        reply = ask(there, visit((clock, 1), since=last, keep=max(0, clock - 2)))
        last = (clock, 1)
    assert visits(reply) == [STALE + 20.0] * N
    assert len(list((tmp_path / "s").glob("*.safetensors"))) < STALE + 3
    assert len(NodeJournal(tmp_path / "s").entries) < STALE + 3
    clock = STALE + 19
    assert visits(ask(node(tmp_path), visit((clock, 1), since=(clock - 2, 1)))) == [clock + 0.0] * N
