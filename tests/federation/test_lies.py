"""If a node lies, stays silent or gets a message twice, the run continues and other nodes' numbers do not change."""

from dataclasses import replace

import pytest

from corymb.core.federation import Federation
from corymb.testing.assertions import assert_same_run
from corymb.testing.cases import CASES, Case, run
from corymb.testing.engines import DOUBLE
from corymb.testing.laws.algorithms import SEED
from corymb.testing.remote import InProcess, joined, nodes_of
from corymb.wire import pack, unpack
from tests.federation.conftest import Federation as Folder
from tests.federation.liars import HANGS, LIAR, LIE, LIES, LOST, Average
from tests.federation.nodes import LINE

pytestmark = pytest.mark.flower_all
NODES, ROUNDS = 3, 2
CASE = Case(replace(LINE.algorithm, rounds=ROUNDS))
PLACES = range(1, 7, NODES)
"""The liar's clients among all."""


@pytest.fixture(scope="module")
def liars(tmp_path_factory):
    """A federation with a node that lies on request, and the connection to it."""
    pytest.importorskip("flwr", reason="the extra [flower] is not installed")
    from corymb.engines.flower.driver import connect

    made = Folder(
        tmp_path_factory.mktemp("liars"), **{"tests.federation.nodes:clients": "tests.federation.liars:clients"}
    )
    made.command("flower", "up")
    transport = connect(made.address, secret=made.state / "secret")
    yield made, transport
    transport.close()
    made.command("flower", "down")


@pytest.fixture
def told(liars):
    """Tells the liar what to say, until the test ends."""
    path = liars[0].folder / LIE
    yield path.write_text
    path.unlink(missing_ok=True)


def engine(transport, **options):
    from corymb.engines.remote import RemoteEngine

    return RemoteEngine(transport, expect=NODES, allow=("corymb.testing.learners", "tests"), **options)


def in_one_process(case, change=lambda answer: answer):
    """The same federation without a network; the liar's way to answer can be another."""
    nodes = {name: node.answer for name, node in nodes_of(case.objective(), case.data(), DOUBLE).items()}
    nodes[LIAR] = change(nodes[LIAR])
    fed = Federation(joined(InProcess(nodes), case.objective()))
    return list(run(case, fed, seed=SEED)), fed.ledger


def refusing(answer):
    """A node that opens sessions, but runs no call."""
    refused = pack({"kind": "refused", "why": "no", "unknown": False})
    return lambda message: refused if unpack(message, ("corymb",)).get("kind") == "call" else answer(message)


@pytest.fixture(scope="module")
def without_the_liar():
    return in_one_process(CASE, refusing)


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_node_is_dropped_and_named_and_nobody_elses_numbers_change(liars, told, without_the_liar, lie):
    told(lie)
    fed = Federation(engine(liars[1]).open(CASE.objective()))
    assert_same_run(list(run(CASE, fed, seed=SEED)), without_the_liar[0])
    names = {fed.names[place] for place in PLACES}
    assert len(fed.ledger.rejected) == ROUNDS * len(names)
    assert {entry["client"] for entry in fed.ledger.rejected} == names
    assert any(LIES[lie][1] in entry["reason"] for entry in fed.ledger.rejected), fed.ledger.rejected


def test_a_run_by_its_address_names_the_liar_in_its_audit(liars, told, tmp_path):
    import json

    told("NaN")
    words = ["run", "federation", "ifca", "--k", 2, "--rounds", ROUNDS, "--engine", "flower", "--nodes", NODES]
    words += ["--address", liars[0].address, "--secret", liars[0].state / "secret", "--evaluate_every", 0]
    done = liars[0].command(*words, "--out", tmp_path / "run", "--json", "-q")
    audit = [json.loads(line) for line in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    named = {event["client"] for event in audit if "client" in event}
    assert named == {f"client-{place}" for place in PLACES}, audit
    assert set(json.loads(done.stdout)["labels"]) >= named


def test_a_reply_that_is_lost_is_asked_for_again_and_the_run_is_the_same(liars, told):
    case = CASES["keeper"]
    told(LOST)
    fed = Federation(engine(liars[1]).open(case.objective()))
    got, (want, ledger) = list(run(case, fed, seed=SEED)), in_one_process(case)
    assert not (liars[0].folder / LIE).exists()  # it was lost indeed
    assert_same_run(got, want)
    assert [at.notes for at in got] == [at.notes for at in want]
    assert vars(fed.ledger) == vars(ledger)


def test_messages_that_are_delivered_twice_change_nothing(liars, monkeypatch):
    from corymb.engines.flower.envelope import bytes_in, message_to

    case, grid = CASES["keeper"], liars[1]._grid
    push, sent = grid.push_messages, []

    def twice(messages):
        again = [message_to(message.metadata.dst_node_id, bytes_in(message)) for message in messages]
        names = list(push(messages))
        sent.extend(push(again))
        return names

    monkeypatch.setattr(grid, "push_messages", twice)
    fed = Federation(engine(liars[1]).open(case.objective()))
    got, (want, ledger) = list(run(case, fed, seed=SEED)), in_one_process(case)
    assert len(sent) > NODES
    assert_same_run(got, want)
    assert [at.notes for at in got] == [at.notes for at in want]
    assert vars(fed.ledger) == vars(ledger)


def test_a_client_that_never_answers_is_named_and_the_run_continues(liars, tmp_path):
    from corymb.engines.flower.driver import connect

    made = Folder(tmp_path, **{"poll = 0.3": "poll = 0.3\nclient_seconds = 4"})
    made.command("flower", "up")
    try:
        transport = connect(made.address, secret=made.state / "secret")
        case = Case(Average(rounds=ROUNDS))
        fed = Federation(engine(transport).open(case.objective()))
        got = list(run(case, fed, seed=SEED))
        transport.close()
        assert engine(liars[1]).echo({"number": 1.0}) < 60  # another federation of this process is reached as before
    finally:
        made.command("flower", "down")
    honest = Case(Average(rounds=ROUNDS, hang=False)).federation("loop")  # there the client sends NaN instead
    assert_same_run(got, list(run(Case(Average(rounds=ROUNDS, hang=False)), honest, seed=SEED)))
    (name,) = {entry["client"] for entry in fed.ledger.rejected}
    assert int(fed.sizes[fed.names.index(name)]) == HANGS
    assert all("took longer than 4 s" in entry["reason"] for entry in fed.ledger.rejected)
    assert len(fed.ledger.rejected) == ROUNDS
