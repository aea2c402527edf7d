"""Bytes over a grid: one message per node, and errors and silence as answers."""

import pytest

pytest.importorskip("flwr", reason="the extra [flower] is not installed")
from flwr.app import Error, Message, RecordDict

from corymb.engines.flower.direct import DirectGrid
from corymb.engines.flower.envelope import bytes_in, message_to, take_bytes
from corymb.engines.flower.grid import FlowerTransport, GridChanged
from corymb.engines.flower.supernode import FastClock

FIRST = 2**63 + 1


def never():
    return False


def test_every_node_gets_its_message_and_answers():
    grid = DirectGrid({FIRST: lambda data: data[::-1], FIRST + 1: lambda data: data * 2})
    transport = FlowerTransport(grid)
    assert transport.addresses() == [str(FIRST), str(FIRST + 1)]
    answers = transport.exchange({str(FIRST): b"abc", str(FIRST + 1): b"d"}, never)
    assert {answer.address: answer.data for answer in answers} == {str(FIRST): b"cba", str(FIRST + 1): b"dd"}
    assert list(transport.exchange({}, never)) == []


def test_large_payloads_arrive_whole():
    grid = DirectGrid({FIRST: lambda data: data})
    payload = bytes(range(256)) * 40_000  # more than one of Flower's chunks
    (answer,) = FlowerTransport(grid).exchange({str(FIRST): payload}, never)
    assert answer.data == payload


class Unwilling(DirectGrid):
    """A grid that replies with an error, or not at all, or whose run ends."""

    def __init__(self, how):
        super().__init__({FIRST: lambda data: data})
        self.how = how

    def push_messages(self, messages):
        if self.how == "refused":
            return [""] * len(list(messages))
        messages = list(messages)
        names = super().push_messages(messages)
        if self.how == "error":
            sent = messages[0]
            self._replies[names[0]] = Message(Error(code=3, reason="node unavailable"), reply_to=sent)
        return names

    def pull_messages(self, message_ids):
        if self.how == "ended":
            raise GridChanged
        return [] if self.how == "silent" else super().pull_messages(message_ids)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("error", "Flower says: node unavailable"),
        ("silent", "did not answer in time"),
        ("refused", "could not be sent"),
        ("ended", "ended its run"),
    ],
)
def test_the_reason_for_a_missing_answer_is_given(how, says):
    (answer,) = FlowerTransport(Unwilling(how), poll=0.01).exchange({str(FIRST): b"x"}, lambda: True)
    assert answer.data is None
    assert says in answer.problem


class PartlyEnding(DirectGrid):
    """A grid that takes one message in each push, and whose run ends when it gets the second."""

    def push_messages(self, messages):
        (message,) = messages
        if self.messages:
            raise GridChanged
        return super().push_messages([message])


def test_messages_are_sent_one_at_a_time_and_none_is_forgotten_if_the_run_ends_meanwhile():
    grid = PartlyEnding({FIRST + place: lambda data: data for place in range(3)})
    answers = list(FlowerTransport(grid).exchange({str(FIRST + place): b"x" for place in range(3)}, never))
    assert sorted(answer.address for answer in answers) == [str(FIRST + place) for place in range(3)]
    assert {answer.problem for answer in answers} == {"Flower ended its run"}


def test_a_message_can_be_relieved_of_its_bytes():
    DirectGrid({})
    message = message_to(1, b"abc")
    assert (take_bytes(message), bytes_in(message)) == (b"abc", b"")
    assert take_bytes(Message(RecordDict(), dst_node_id=1, message_type="query")) == b""


class Losing(DirectGrid):
    """A grid that loses the first reply of its node, though the node has answered."""

    def pull_messages(self, message_ids):
        if self.messages < 2:
            return []
        first = next(iter(self._replies))
        return [reply for reply in super().pull_messages(message_ids) if reply.metadata.reply_to_message_id != first]


def test_a_node_whose_reply_was_lost_gets_its_message_again_and_one_answer_counts(monkeypatch):
    monkeypatch.setattr("corymb.engines.flower.grid.RESEND", 0.02)
    answers = list(FlowerTransport(Losing({FIRST: lambda data: data}), poll=0.01).exchange({str(FIRST): b"x"}, never))
    assert [answer.data for answer in answers] == [b"x"]


def test_a_foreign_message_holds_no_bytes():
    DirectGrid({})
    assert bytes_in(Message(RecordDict(), dst_node_id=1, message_type="query")) == b""


def test_a_supernode_shortens_only_its_fixed_waits(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    clock = FastClock(0.4)
    for seconds in (3, 0.5, 7.0):
        clock.sleep(seconds)
    assert slept == [0.4, 0.1, 7.0]
    assert clock.monotonic() > 0
