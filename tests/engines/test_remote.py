"""The server's side of a federation: discovery of nodes, checks of their replies, and waiting for silent ones."""

import sys
import time

import pytest
import torch

from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation, TooFewReplies
from corymb.core.sums import Sums
from corymb.engines import LoopEngine
from corymb.engines.node import Node
from corymb.engines.remote import GRACE, Patience, RemoteEngine
from corymb.objectives import LinearRegression
from corymb.settings import InvalidInput
from corymb.testing.assertions import collected_warnings
from corymb.testing.engines import DOUBLE
from corymb.testing.keeper import count_visits
from corymb.testing.remote import InProcess, joined, nodes_of, remote
from corymb.testing.small_data import regression
from corymb.trees import take
from corymb.wire import pack, unpack

OBJECTIVE = LinearRegression(3, dtype=torch.float64)
MODELS = {"weight": torch.zeros(1, 3, dtype=torch.float64)}
NAMES = [f"client-{i}" for i in range(6)]


def federation(change=lambda name, node: node.answer, folder=None, **options):
    """A federation of three nodes with two clients each, some of them changed; and its transport."""
    nodes = nodes_of(OBJECTIVE, regression(), DOUBLE, folder)
    transport = InProcess({name: change(name, node) for name, node in nodes.items()})
    return Federation(joined(transport, OBJECTIVE, **options)), transport


def visits(fed):
    replies = fed.clients.sum(count_visits, MODELS)
    return dict(zip(replies.clients.names, replies.value.note.tolist(), strict=True)), dict(replies.rejected)


def test_one_message_goes_to_each_node_for_a_call():
    fed, transport = federation()
    assert fed.names == NAMES
    transport.messages.clear()
    fed.clients.sum(count_visits, MODELS)
    assert sorted(name for name, _ in transport.messages) == ["node-0", "node-1", "node-2"]
    transport.messages.clear()
    fed.clients[[0, 3]].sum(count_visits, MODELS)
    assert [name for name, _ in transport.messages] == ["node-0"]


def test_messages_are_packed_one_after_another_when_they_are_sent(monkeypatch):
    """Together, those of all nodes would hold as many copies of the models as there are nodes."""
    fed, transport = federation()
    packed, sent = [], []
    monkeypatch.setattr("corymb.engines.remote.pack", lambda tree: packed.append(1) or pack(tree))
    for name, answer in transport.nodes.items():
        transport.nodes[name] = lambda message, answer=answer: sent.append(len(packed)) or answer(message)
    fed.clients.sum(count_visits, MODELS)
    assert sent == [1, 2, 3]


def only_calls(there, reply):
    """A node that is honest except in its replies to calls."""

    def answer(message):
        good = there.answer(message)
        return reply(unpack(good, ("corymb",))) if unpack(message, ("corymb",))["kind"] == "call" else good

    return answer


def spoiled(change):
    """A function that changes the part in an honest reply."""
    return lambda reply: pack(reply | {"parts": [reply["parts"][0] | change(reply["parts"][0])]})


def sums(**changes):
    return spoiled(lambda part: {"value": part["value"]._replace(**changes)})


TOTAL = torch.zeros(1, 3, dtype=torch.float64)
LIES = {
    "NaN": (sums(total={"weight": TOTAL * torch.nan}), "not finite"),
    "wrong shape": (sums(total={"weight": TOTAL[:, :2]}), "most clients sent"),
    "weight × 1e6": (sums(weight=torch.tensor([2e6])), "weight is more than"),
    "negative weight": (sums(weight=torch.tensor([-1.0])), "weight is negative"),
    "label 99": (sums(label=torch.tensor([99, 0])), "label is out of range"),
    "1e300": (sums(total={"weight": TOTAL + 1e300}), "larger than its weight allows"),
    "ids of others": (spoiled(lambda part: {"ids": torch.tensor([0, 5])}), "clients that it does not have"),
    "ids twice": (spoiled(lambda part: {"ids": torch.tensor([0, 0])}), "came twice"),
    "garbage": (lambda reply: b"x" * 100, "cannot be read"),
    "nothing": (lambda reply: b"", "cannot be read"),
    "a list": (lambda reply: pack([1]), "is a list, wanted a dict"),
    "another kind": (lambda reply: pack({"kind": "hello"}), "is 'hello', wanted 'parts'"),
    "no part": (lambda reply: pack({"kind": "parts"}), "no parts"),
    "unknown session, for ever": (lambda reply: pack({"kind": "refused", "why": "who?", "unknown": True}), "who?"),
    "a refusal": (lambda reply: pack({"kind": "refused", "why": "no disk", "unknown": False}), "no disk"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_node_is_dropped_and_named_and_no_other_numbers_change(lie):
    honest, _ = visits(federation()[0])
    reply, says = LIES[lie]
    change = lambda name, node: only_calls(node, reply) if name == "node-1" else node.answer  # noqa: E731
    got, rejected = visits(federation(change)[0])
    assert got == {name: value for name, value in honest.items() if name not in ("client-1", "client-4")}
    assert set(rejected) == {"client-1", "client-4"}
    assert any(says in why for why in rejected.values()), rejected


def test_honest_replies_are_sums_as_the_lies_assume():
    replies = federation()[0].clients.sum(count_visits, MODELS)
    assert isinstance(replies.value, Sums)


def silent_for(there, times):
    """A node that runs its first calls but does not answer them."""
    left = [times]

    def answer(message):
        reply = there.answer(message)
        if unpack(message, ("corymb",))["kind"] == "call" and left[0]:
            left[0] -= 1
            return None
        return reply

    return answer


def test_a_reply_that_was_lost_is_asked_for_again_and_the_run_is_the_same():
    fed, _ = federation(lambda name, node: silent_for(node, 2) if name == "node-1" else node.answer)
    for times in (1.0, 2.0):
        got, rejected = visits(fed)
        assert (got, rejected) == (dict.fromkeys(NAMES, times), {})


def test_patience_with_a_silent_node_ends_once_enough_clients_have_answered():
    fed, _ = federation(
        lambda name, node: silent_for(node, 10**9) if name == "node-1" else node.answer, patience=Patience(0.4, 4)
    )
    began = time.monotonic()
    got, rejected = visits(fed)
    assert 0.4 <= time.monotonic() - began < 5
    assert (set(got), set(rejected)) == (set(NAMES) - {"client-1", "client-4"}, {"client-1", "client-4"})
    assert "node node-1: no answer; waited for" in rejected["client-1"]


def test_a_node_that_was_left_out_remembers_only_what_counted():
    fed, transport = federation(patience=Patience(0.0, 1))
    visits(fed)
    there = transport.nodes.pop("node-1")
    transport.nodes["node-1"] = silent_for(there.__self__, 1)
    assert set(visits(fed)[1]) == {"client-1", "client-4"}  # it has run the call, but its reply was lost
    got, rejected = visits(fed)
    assert (got["client-0"], got["client-1"], rejected) == (3.0, 2.0, {})


def test_a_node_that_was_restarted_is_found_under_its_new_address(tmp_path):
    fed, transport = federation(folder=tmp_path)
    visits(fed)
    transport.nodes.pop("node-1")
    transport.nodes["elsewhere"] = nodes_of(OBJECTIVE, regression(), DOUBLE, tmp_path)["node-1"].answer
    assert visits(fed) == (dict.fromkeys(NAMES, 2.0), {})


def test_a_stranger_cannot_take_a_nodes_place(tmp_path):
    fed, transport = federation(folder=tmp_path, patience=Patience(1.2, 1))
    transport.nodes.pop("node-1")
    transport.nodes["elsewhere"] = nodes_of(OBJECTIVE, regression(), DOUBLE, tmp_path / "other")["node-1"].answer
    with collected_warnings() as said:
        assert set(visits(fed)[1]) == {"client-1", "client-4"}
    assert sum("it is another one" in line for line in said) == 1  # not at every poll


def test_a_node_that_is_back_under_another_name_is_named_with_the_one_that_it_had(tmp_path):
    fed, transport = federation(folder=tmp_path, patience=Patience(1.2, 1))
    same = transport.nodes.pop("node-1").__self__
    transport.nodes["elsewhere"] = Node(same.engine, "node-9", folder=tmp_path / "node-9").answer
    with collected_warnings() as said:
        assert set(visits(fed)[1]) == {"client-1", "client-4"}
    hints = [line for line in said if "takes no part in this run" in line]
    assert len(hints) == 1  # not at every poll
    assert "node node-9 has clients of node node-1" in hints[0]
    assert "start it as node-1, with that one's --state" in hints[0]


@pytest.mark.parametrize("place", ["node-1", "elsewhere"])  # with a key, a node has the same address again
@pytest.mark.parametrize("sizes", [(3, 9, 5, 6, 7), (3, 4, 5, 6, 7, 8, 9, 3)])
def test_a_node_that_is_back_with_other_data_takes_no_part(place, sizes, tmp_path):
    fed, transport = federation(folder=tmp_path)
    visits(fed)
    transport.nodes.pop("node-1")
    transport.nodes[place] = nodes_of(OBJECTIVE, regression(sizes), DOUBLE, tmp_path)["node-1"].answer
    with collected_warnings() as said:
        got, rejected = visits(fed)
    assert (set(got.values()), set(rejected)) == ({2.0}, {"client-1", "client-4"})
    assert all("its data are not those that it had when the run began" in why for why in rejected.values())
    assert any("node node-1 takes no part" in line for line in said)
    transport.nodes[place] = nodes_of(OBJECTIVE, regression(), DOUBLE, tmp_path)["node-1"].answer
    got, rejected = visits(fed)
    assert (got["client-0"], got["client-1"], rejected) == (3.0, 2.0, {})


def test_a_node_that_lost_its_sessions_gets_this_one_again():
    fed, transport = federation()
    fresh = nodes_of(OBJECTIVE, regression(), DOUBLE)["node-1"]
    transport.nodes["node-1"] = fresh.answer
    assert visits(fed) == (dict.fromkeys(NAMES, 1.0), {})


def shard(positions, name, data=None, **changes):
    engine = LoopEngine(OBJECTIVE, (data or regression()).at(positions), changes.pop("placement", DOUBLE))
    return Node(engine, name)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([shard([0, 1], "a"), shard([1, 2], "b")], "Client 'client-1' is on two nodes, 'a' and 'b'"),
        ([shard([0], "a"), shard([1], "a")], "Two nodes have the same name"),
        (
            [shard([0], "a"), shard([1], "b", regression(d=4))],
            "differ in what their examples are like: an example has the shape",
        ),
        ([shard([0], "a")], "1 of 2 nodes are there"),
    ],
)
def test_nodes_that_do_not_make_a_federation_are_refused(nodes, says):
    transport = InProcess({str(number): node.answer for number, node in enumerate(nodes)})
    with pytest.raises(InvalidInput, match=says):
        RemoteEngine(transport, expect=2, wait=0.5)


def test_a_resumed_run_waits_for_its_own_nodes_and_admits_no_others():
    nodes = {"0": shard([0, 1], "a"), "1": shard([2], "b"), "2": shard([0], "late", regression(d=4))}
    nodes["2"].engine.host.names = ["newcomer"]
    transport = InProcess({number: node.answer for number, node in nodes.items()})
    of_run = ["client-0", "client-1", "client-2"]
    with collected_warnings() as lines:
        assert RemoteEngine(transport, expect=2, clients=of_run).names == of_run
    assert lines == ["the node at 2 is left out: it is 'late', which has no client of this run"]
    del transport.nodes["1"]  # two nodes are there, as many as the run had; but not the same
    with pytest.raises(
        InvalidInput, match=r"no node has client 'client-2' of the run; one was .* Start the nodes that the run had"
    ):
        RemoteEngine(transport, expect=1, wait=0.3, clients=of_run)


def test_a_node_that_never_knows_the_session_is_asked_again_only_once():
    fed, transport = federation()
    forgetful = pack({"kind": "refused", "why": "who?", "unknown": True})
    transport.nodes["node-1"] = lambda message: forgetful  # to calls and to openings alike
    transport.messages.clear()
    assert set(visits(fed)[1]) == {"client-1", "client-4"}
    assert [name for name, _ in transport.messages].count("node-1") == 3


def test_a_node_with_an_invalid_introduction_is_left_out():
    there = shard([0, 1], "a")
    odd = lambda message: pack(unpack(there.answer(message)) | {"clients": ["client-1", "client-0"]})  # noqa: E731
    with pytest.raises(InvalidInput, match=r"0 of 1 nodes.*one was left out.*not in order"):
        RemoteEngine(InProcess({"0": odd}), wait=0.1)


def test_another_version_on_a_node_is_refused():
    there = shard([0], "a")
    old = lambda message: pack(unpack(there.answer(message)) | {"versions": {"corymb": "0.0.1"}})  # noqa: E731
    with pytest.raises(InvalidInput, match=r"has corymb 0.0.1, this machine"):
        RemoteEngine(InProcess({"0": old}))


def test_another_version_is_reported_before_schema_differences():
    there = [shard([0], "a"), shard([1], "b")]
    new = {"versions": {"corymb": "9.0"}, "schema": {"task": "regression", "a field of another version": 1}}
    newer = lambda message: pack(unpack(there[1].answer(message)) | new)  # noqa: E731
    with pytest.raises(InvalidInput, match=r"Node 'b' has corymb 9.0, this machine .* start the node again"):
        RemoteEngine(InProcess({"0": there[0].answer, "1": newer}), expect=2)


def test_a_session_is_refused_with_the_nodes_reason():
    with pytest.raises(InvalidInput, match=r"Node 'a' did not open the session.*not in a package"):
        RemoteEngine(InProcess({"0": shard([0], "a").answer})).open(LinearRegression(3, features=torch_squares))


@on_client
def not_for_nodes(client: Client, models):
    """A client function in a package that nodes do not allow."""
    return Share(take(models, 0), torch.ones(1, dtype=torch.float64))


def allowing(name, node):
    """A node that allows this file's functions."""
    node.allow = (*node.allow, "tests")
    return node.answer


def test_a_function_that_no_node_allows_ends_the_run_at_its_first_call():
    fed, transport = federation()
    transport.messages.clear()
    with pytest.raises(
        InvalidInput, match=r"No node can run .*not_for_nodes.* Node 'node-0': .* --allow tests \("
    ) as ended:
        fed.clients.sum(not_for_nodes, MODELS)
    assert len(transport.messages) == 3
    assert "\n" not in str(ended.value)


def test_a_function_that_nodes_lack_is_reported_with_a_remedy(monkeypatch):
    fed, _ = federation(allowing)
    gone = not_for_nodes
    monkeypatch.delattr(sys.modules[__name__], "not_for_nodes")
    with pytest.raises(
        InvalidInput, match=r"There is no 'tests.engines.test_remote:not_for_nodes' here.* restart the node"
    ):
        fed.clients.sum(gone, MODELS)


def test_a_node_that_does_not_allow_a_function_is_named_once_and_left_out_alone():
    fed, _ = federation(lambda name, node: allowing(name, node) if name != "node-1" else node.answer)
    with collected_warnings() as lines:
        for _ in range(2):
            replies = fed.clients.sum(not_for_nodes, MODELS)
            assert {client for client, _ in replies.rejected} == {"client-1", "client-4"}
        with pytest.raises(TooFewReplies):  # one node of three says so of its own clients: that ends no run
            fed.clients[[1, 4]].sum(not_for_nodes, MODELS)
    assert len([line for line in lines if "node node-1 takes no part in" in line]) == 1


def torch_squares(x):
    return x**2


def test_data_stay_on_their_nodes():
    with pytest.raises(InvalidInput, match="on their nodes"):
        remote(OBJECTIVE, regression(), DOUBLE).refresh(regression())


def test_an_echo_goes_to_every_node_and_back():
    engine = remote(OBJECTIVE, regression(), DOUBLE)
    assert engine.echo(MODELS) < 5
    assert engine.traffic.messages >= 3


@pytest.mark.parametrize("lie", [1e300, -5.0, float("nan"), "long"])
def test_a_nodes_reported_time_is_at_most_the_time_waited(lie):
    def change(name, node):
        return only_calls(node, lambda reply: pack(reply | {"seconds": lie})) if name == "node-0" else node.answer

    fed, _ = federation(change)
    began = time.monotonic()
    fed.clients.sum(count_visits, MODELS)
    traffic = fed._engine.traffic
    assert 0 < traffic.slowest <= time.monotonic() - began
    assert all(0 < spent <= time.monotonic() - began for spent in traffic.computed.values())
    assert ("node-0" in traffic.computed) == (lie == 1e300)


class Clock:
    """Stands in for the module `time`: it advances when it is asked to sleep."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds):
        self.now += seconds
        assert self.now < 10_000, "waits for ever"


class Timed(InProcess):
    """Nodes that answer at once or not at all; the clock runs while a call waits for those that do not, up to 60 s."""

    def exchange(self, messages, give_up):
        silent = []
        for address in messages:
            answers = list(super().exchange({address: messages[address]}, give_up))
            silent += [answer for answer in answers if answer.data is None]
            yield from (answer for answer in answers if answer.data is not None)
        until = self.clock.now + 60
        while silent and not give_up() and self.clock.now < until:
            self.clock.sleep(0.25)
        yield from silent


@pytest.fixture
def timed(monkeypatch):
    """A federation whose node-1 stops answering messages of the kinds in a set, and what passes between them."""
    clock, deaf = Clock(), set()
    monkeypatch.setattr("corymb.engines.remote.time", clock)
    nodes = nodes_of(OBJECTIVE, regression(), DOUBLE)
    transport = Timed({name: node.answer for name, node in nodes.items()})
    transport.clock, transport.deaf = clock, deaf
    known = transport.nodes["node-1"]
    transport.nodes["node-1"] = lambda data: None if unpack(data, ("corymb",))["kind"] in deaf else known(data)
    return Federation(joined(transport, OBJECTIVE, patience=Patience(300.0, 1))), transport


LEFT_OUT = {"client-1", "client-4"}
EVERYTHING = ("hello", "open", "call")


def kinds_to(transport, name):
    """The kinds of the messages that a node was sent since the last time."""
    kinds = [unpack(data, ("corymb",))["kind"] for address, data in transport.messages if address == name]
    transport.messages.clear()
    return kinds


def test_nodes_that_are_there_get_one_message_a_call_and_no_call_waits(timed):
    fed, transport = timed
    kinds_to(transport, "node-1")
    for times in (1.0, 2.0):
        assert visits(fed) == (dict.fromkeys(NAMES, times), {})
        assert kinds_to(transport, "node-1") == ["call"]
    assert transport.clock.now == 0.0


def test_a_node_that_is_gone_costs_the_patience_once_and_is_named_once(timed):
    fed, transport = timed
    transport.deaf.update(EVERYTHING)
    with collected_warnings() as said:
        for _ in range(5):
            got, rejected = visits(fed)
            assert (set(got), set(rejected)) == (set(NAMES) - LEFT_OUT, LEFT_OUT)
    assert 300 <= transport.clock.now <= 300 + 4 * GRACE + 5
    assert [line for line in said if "did not answer" in line] == [
        "node node-1 did not answer within 300 s (patience): its clients are left out until it is back, and calls no "
        "longer wait for it"
    ]
    assert rejected["client-1"] == "node node-1: it missed an earlier call and was not back yet"


def test_calls_do_not_wait_at_all_for_a_missed_node_that_is_offline_or_for_one_in_a_new_session(timed):
    fed, transport = timed
    del transport.nodes["node-1"]
    visits(fed)
    before = transport.clock.now
    assert before >= 300
    for _ in range(3):
        assert set(visits(fed)[1]) == LEFT_OUT
    other = Federation(fed._engine.open(OBJECTIVE))  # as the evaluation at the end of a run
    assert set(visits(other)[1]) == LEFT_OUT
    assert transport.clock.now == before


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_missed_node_that_is_back_takes_part_again_with_what_counted(timed, tmp_path, elsewhere):
    fed, transport = timed
    visits(fed)
    transport.deaf.update(EVERYTHING)
    assert set(visits(fed)[1]) == LEFT_OUT
    assert set(visits(fed)[1]) == LEFT_OUT
    transport.deaf.clear()
    if elsewhere:
        transport.nodes["new"] = transport.nodes.pop("node-1")
    with collected_warnings() as said:
        got, rejected = visits(fed)
    assert said == ["node node-1 is back, and takes part again"]
    assert (got["client-0"], got["client-1"], rejected) == (4.0, 2.0, {})
    transport.messages.clear()
    assert visits(fed)[1] == {}
    assert kinds_to(transport, "new" if elsewhere else "node-1") == ["call"]


def test_a_node_that_is_only_slow_is_asked_again_whenever_it_is_free(timed):
    fed, transport = timed
    took_part = []
    for _ in range(3):
        transport.deaf.update(EVERYTHING)  # busy with a call, longer than the others wait
        took_part += [visits(fed)[1] == {}, visits(fed)[1] == {}]
        transport.deaf.clear()
        took_part.append(visits(fed)[1] == {})
    assert took_part == [False, False, True] * 3


def test_a_node_that_is_back_too_late_for_a_call_is_asked_the_next_one_at_once(timed):
    fed, transport = timed
    transport.deaf.update(EVERYTHING)
    visits(fed)
    transport.deaf.discard("hello")
    assert set(visits(fed)[1]) == LEFT_OUT
    transport.deaf.clear()
    kinds_to(transport, "node-1")
    assert visits(fed)[1] == {}
    assert kinds_to(transport, "node-1")[0] == "call"


def test_a_call_that_needs_a_missed_node_still_waits_for_it(timed):
    fed, transport = timed
    transport.deaf.update(EVERYTHING)
    visits(fed)
    began = transport.clock.now
    transport.clock.sleep = lambda seconds, plain=transport.clock.sleep: (
        plain(seconds),
        transport.deaf.clear() if transport.clock.now > began + 1000 else None,
    )
    got = fed.clients[[1, 4]].sum(count_visits, MODELS)  # nobody else is asked: there is no call without it
    assert got.value.note.tolist() == [1.0, 1.0]
    assert transport.clock.now > began + 1000


class Deaf(InProcess):
    """Nodes that are online, of which some never answer."""

    def exchange(self, messages, give_up):
        yield from super().exchange({name: data for name, data in messages.items() if name != "node-2"}, give_up)
        while "node-2" in messages and not give_up():
            time.sleep(0.01)


def test_silent_nodes_are_named_soon_before_a_run(monkeypatch):
    monkeypatch.setattr("corymb.engines.remote.SOON", 0.05)
    nodes = nodes_of(OBJECTIVE, regression(), DOUBLE)
    transport = Deaf({name: node.answer for name, node in nodes.items()})
    with collected_warnings() as lines, pytest.raises(InvalidInput, match="2 of 3 nodes"):
        RemoteEngine(transport, expect=3, wait=0.3)
    assert [line for line in lines if "node-2 are online but silent" in line]
    assert len([line for line in lines if "silent" in line]) == 1


def test_the_number_of_missing_nodes_is_logged_soon(monkeypatch):
    monkeypatch.setattr("corymb.engines.remote.SOON", 0.0)
    nodes = nodes_of(OBJECTIVE, regression(), DOUBLE)
    with collected_warnings() as lines, pytest.raises(InvalidInput, match="3 of 4 nodes"):
        RemoteEngine(InProcess({name: node.answer for name, node in nodes.items()}), expect=4, wait=0.5)
    assert lines == ["waiting: 3 of 4 nodes are there"]
