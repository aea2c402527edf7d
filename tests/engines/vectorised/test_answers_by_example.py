"""Replies with a row for each example are the same on both engines: as long as each client's own examples."""

import pytest
import torch

from corymb.core.client import Client, on_client
from corymb.core.federation import Federation
from corymb.data import FederatedDataset, Ragged
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.local import point_losses, scores
from corymb.objectives import LinearRegression

ENGINES = {"loop": LoopEngine, "vectorised": VectorisedEngine}


@on_client
def send_point_losses(client: Client, models):
    return point_losses(client, models)[0]


@on_client
def send_test_targets(client: Client, models):
    return client.test.y * 2


@on_client
def send_mean_of_test(client: Client, models):
    return client.test.y.mean()


@on_client
def send_four_numbers(client: Client, models):
    return scores(client, models).expand(4)


def asked(engine, fn, sizes, **options):
    rows = sum(sizes)
    client = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).numpy()
    x = torch.linspace(-1, 1, 2 * rows).reshape(rows, 2).sin()
    data = FederatedDataset.from_arrays(x, x[:, 0], client, task="regression", scale="none", **options)
    fed = Federation(ENGINES[engine](LinearRegression(2), data))
    replies = fed.clients.map(fn, {"weight": torch.ones(1, 2)})
    return replies.value, replies.rejected


@pytest.mark.parametrize("fn", [send_point_losses, send_test_targets])
def test_rows_by_example_are_refused_by_size_on_both_engines(fn, caplog):
    options = {"test": 0.5} if fn is send_test_targets else {"test": 0}
    (want, refused), (got, also) = (asked(engine, fn, [4, 4, 10], **options) for engine in ENGINES)
    torch.testing.assert_close(got, want)
    assert also == refused
    assert len(refused) == 1
    assert "it replies with a row for each example, and clients have different numbers of examples" in caplog.text


def test_a_mean_over_padded_test_examples_is_noticed_where_training_examples_are_not_padded(caplog):
    x = torch.linspace(-1, 1, 26).reshape(13, 2).sin()
    train, test = Ragged(x[:8], x[:8, 0], torch.tensor([0, 4, 8])), Ragged(x[8:], x[8:, 0], torch.tensor([0, 3, 5]))
    data = FederatedDataset(name="lines", train=train, test=test, names=["a", "b"], task="regression")
    (want, got) = (
        Federation(engine(LinearRegression(2), data)).clients.map(send_mean_of_test, {"weight": torch.ones(1, 2)}).value
        for engine in ENGINES.values()
    )
    torch.testing.assert_close(got, want)
    assert "the number of padded rows changes its answer" in caplog.text


def test_clients_of_one_size_may_send_rows_by_example():
    (want, _), (got, refused) = (asked(engine, send_point_losses, [4, 4], test=0) for engine in ENGINES)
    torch.testing.assert_close(got, want)
    assert not refused


def test_a_reply_that_has_the_length_by_chance_is_accepted(caplog):
    value, refused = asked("vectorised", send_four_numbers, [8, 4], test=0.5)
    assert value.shape == (2, 4)
    assert not refused
    assert not caplog.text
