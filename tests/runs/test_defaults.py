from dataclasses import fields, replace

import numpy as np
import pytest

import corymb
from corymb.algorithms.catalogue import CATALOGUE
from corymb.cli.request import OPTIONS
from corymb.cli.run import Output
from corymb.core.snapshot import planned_rounds
from corymb.data import digits, mixed_regression_ifca
from corymb.data.schema import DataSchema, schema_of
from corymb.local import Descent
from corymb.runs.defaults import Defaults, configure, defaults_for, name_of, with_defaults
from corymb.runs.fit import as_dataset, fit
from corymb.settings import InvalidInput, to_dict
from tests.runs import small

NEEDED = {"k": 2, "rounds": 2, "min_panel": 2, "anchors": 4}


@pytest.fixture(scope="module")
def data():
    return digits(clients=4, train=6, test=2)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_algorithm_has_a_row_that_runs(name):
    data = mixed_regression_ifca(n=12, m=20, d=3, test=4)
    kind = CATALOGUE[name].algorithm
    names = {field.name for field in fields(kind)}
    short = {place: {"rounds": 2} for place in ("inner", "then") if place in names}
    needed = {name: value for name, value in NEEDED.items() if name in names}
    algorithm = configure(name, data, **needed, **short)
    assert name_of(algorithm) == name
    run = fit(algorithm, data)
    assert run.config["algorithm"] == name
    if name == "clustergan":
        assert run.metrics["test_reconstruction_error"] > 0
    elif hasattr(kind, "label_points"):  # learns the density of features
        assert run.metrics["test_log_density"] < 0
    else:
        assert run.metrics["test_squared_error"] > 0
    assert len(run.history) <= planned_rounds(algorithm)


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_setting_is_called_like_an_option_of_the_run(name):
    options = {field.name for kind in (*OPTIONS, Output) for field in fields(kind)} | {"data", "algorithm", "record"}
    assert options.isdisjoint(field.name for field in fields(CATALOGUE[name].algorithm))


def test_digits_get_their_defaults_and_what_is_given_wins(data):
    plain = configure("ifca", data, k=4)
    assert (plain.rounds, plain.local.lr, plain.local.steps) == (40, 0.3, 10)
    given = configure(corymb.IFCA, data, k=4, rounds=3, local={"lr": 0.5, "momentum": 0.9})
    assert (given.rounds, given.local) == (3, Descent(lr=0.5, steps=10, momentum=0.9))
    whole = configure("ifca", data, k=4, local=Descent(lr=0.5))
    assert whole.local == Descent(lr=0.5)


def test_privacy_counts_clients_alike_and_has_no_stage_after_it():
    table = as_dataset(small.arrays(clients=4, rows=10), seed=0)
    private = {"noise": 1.0, "clip": 1.0}
    assert configure("fedavg", table).weights == "examples"
    assert configure("fedavg", table, privacy=private).weights == "clients"
    assert configure("sr-fca", table, privacy=private).finish is None


def test_epochs_replace_the_default_steps(data):
    assert configure("fedavg", data, local={"epochs": 2, "batch": 5}).local == Descent(lr=0.3, epochs=2, batch=5)


def test_an_inner_algorithm_gets_the_defaults_too(data):
    algorithm = configure("one-shot", data, k=2, inner={"participants": 2})
    assert algorithm.inner == corymb.FedAvg(rounds=40, local=Descent(lr=0.3, steps=10), participants=2)
    assert configure("one-shot", data, k=2, inner={"mu": 0.5}).inner.mu == 0.5


def test_true_clusters_come_from_the_data(data):
    assert configure("oracle", data).groups == (0, 1, 2, 3)
    with pytest.raises(InvalidInput, match="are unknown"):
        configure("oracle", as_dataset(small.arrays(), seed=0))


WRONG = {
    "an algorithm": (("ifac", {}), "Did you mean 'ifca'"),
    "no k": (("ifca", {}), "ifca needs k: give it as --k"),
    "a name": (("ifca", {"k": 2, "restart": 3}), "'restart' for IFCA. Did you mean 'restarts'"),
    "a nested name": (("ifca", {"k": 2, "local": {"step": 3}}), "'local.step' for Descent. Did you mean 'steps'"),
    "a type": (("ifca", {"k": "two"}), "k: "),
    "a nested type": (("ifca", {"k": 2, "local": 3}), "local: "),
    "a range": (("ifca", {"k": 0}), "^k must be at least 1"),
    "a nested range": (
        ("ifca", {"k": 2, "local": {"lr": -1.0}}),
        "^local: lr must be positive and at most 1e\\+18, got -1.0.$",
    ),
}


@pytest.mark.parametrize(("asked", "line"), WRONG.values(), ids=WRONG)
def test_wrong_settings_are_refused_in_a_line(asked, line, data):
    name, settings = asked
    with pytest.raises(InvalidInput, match=line) as error:
        configure(name, data, **settings)
    assert "\n" not in str(error.value)


def test_an_algorithm_without_a_catalogue_entry_is_named_by_its_class(data):
    class Mine(corymb.FedAvg):
        pass

    algorithm = configure(Mine, data, rounds=2)
    assert isinstance(algorithm, Mine)
    assert name_of(algorithm) == "Mine"


def test_defaults_by_kind():
    table = DataSchema(task="regression", features=(9,), standardise=True)
    assert defaults_for(table).safe
    assert defaults_for(table).gradient_lr == 0.05
    classes = table._replace(task="classification", classes=("a", "b"))
    assert defaults_for(classes, examples=1000).batch is None
    assert defaults_for(classes, examples=100_000).batch == 64  # a perceptron, which wants many steps
    picture = DataSchema(task="classification", features=(1, 28, 28), classes=("a", "b"))
    assert defaults_for(picture).batch is not None  # a full batch of pictures takes minutes
    assert defaults_for(picture._replace(features=(1, 28, 20))) == Defaults()
    assert defaults_for(schema_of(mixed_regression_ifca(n=4, m=4, d=3))) == Defaults()


def test_defaults_are_the_algorithms_own_where_the_data_say_nothing():
    assert with_defaults(corymb.FedAvg, {}, Defaults()) == {"local": to_dict(corymb.FedAvg().local)}


@pytest.fixture(scope="module")
def ill():
    return small.ill_conditioned()


@pytest.mark.parametrize("name", ["kfed", "uifca", "clustergan"])
def test_algorithms_that_cluster_examples_learn_the_same_with_labels_as_without(name):
    rows = np.random.default_rng(0)
    x, y, client = rows.normal(size=(40, 3)), rows.integers(0, 2, 40).astype(str), np.arange(40) % 4
    labelled, blind = (
        corymb.datasets.FederatedDataset.from_arrays(x, y, client, task=task) for task in ("classification", "density")
    )
    assert labelled.schema["standardise"]
    assert configure(name, labelled, k=2) == configure(name, blind, k=2) == CATALOGUE[name].algorithm(k=2)


def test_a_given_step_size_is_used_unchanged(ill):
    suited = configure("fedavg", ill).local
    assert suited.safe
    assert suited.decay < 1
    given = configure("fedavg", ill, local={"lr": 0.2}).local
    assert (given.lr, given.safe, given.decay, given.steps) == (0.2, False, 1.0, 5)
    assert not given.whiten
    straight = configure("fedavg", ill, local={"linear_decay": 30}).local
    assert (straight.lr, straight.decay, straight.linear_decay) == (suited.lr, 1.0, 30)


def test_other_ways_to_step_get_step_sizes_of_their_own(ill):
    adam = configure("fedavg", ill, local={"optimiser": "adam"}).local
    assert (adam.lr, adam.safe) == (0.01, False)
    gradients = configure("ifca", ill, k=2, averaging="gradients").local
    assert (gradients.lr, gradients.safe) == (0.5 / 9, False)  # clients cannot shorten the server's step
    assert configure("sr-fca", ill).alone.steps == 100  # once, not round by round


def test_a_network_on_a_table_of_numbers_takes_more_steps_than_a_line(ill):
    lines = [configure("fedavg", ill, model=model) for model in (None, "linear")]
    network = configure("fedavg", ill, model="mlp").local
    assert [(line.local.whiten, line.local.steps) for line in lines] == [(True, 1)] * 2
    assert (network.whiten, network.steps, network.safe) == (False, 5, True)


def test_whoever_trains_alone_keeps_the_best_of_its_models(ill, data):
    assert configure("alone", ill).keep == "penalised"
    assert configure("alone", ill, rounds=5).keep == "best"  # training is asked for
    assert configure("alone", data).keep == "last"  # not a table


def test_clusters_on_tables_are_trained_on_unless_the_user_says_otherwise(ill):
    longer = replace(configure("fedavg", ill), rounds=300)
    longer = replace(longer, local=replace(longer.local, decay=0.99))  # features go together otherwise in a cluster
    assert configure("local-kmeans", ill, k=2).finish == longer
    assert configure("sr-fca", ill).finish == longer
    assert configure("sr-fca", ill, rounds=6).finish == replace(longer, rounds=6)
    assert configure("one-shot", ill, k=2).inner == longer
    assert configure("one-shot", ill, k=2, inner={"rounds": 7}).inner == replace(longer, rounds=7)
    assert configure("local-kmeans", ill, k=2, finish=None).finish is None
    assert configure("cfl", ill).accept == "evidence"
    assert configure("cfl", ill, accept="gamma").accept == "gamma"


def test_soft_clusters_stay_apart_until_the_last_round():
    """With steps that became short, FedSoft's draws averaged its models to one: 37 % of these were right."""
    rng = np.random.default_rng(3)
    client, kind = np.arange(1200) % 24, rng.integers(0, 4, 1200)
    x = 1.5 * rng.normal(size=(4, 6))[kind] + rng.normal(size=(1200, 6))
    data = as_dataset((x, (kind + client % 3) % 4, client))  # every third client names the classes in one way
    run = fit(configure("fedsoft", data, k=3), data, evaluate_every=0)
    assert run.metrics["test_accuracy"] > 0.8
    given = configure("fedsoft", data, k=3, local={"decay": 0.97})
    assert given.local.decay == 0.97


def test_lengths_that_are_given_stay_in_the_models_own_coordinates(ill):
    assert configure("fedprox", ill).local.whiten
    assert not configure("fedprox", ill, mu=0.5).local.whiten
    assert not configure("fedavg", ill, local={"weight_decay": 0.1}).local.whiten


NOT_FOR_TABLES = {"oracle", "moment-descent", "kfed", "uifca", "clustergan"}  # no truth; other models; no labels


@pytest.mark.parametrize("name", sorted(CATALOGUE.keys() - NOT_FOR_TABLES))
def test_no_algorithm_diverges_on_a_client_far_steeper_than_the_others(name, ill):
    names = {field.name for field in fields(CATALOGUE[name].algorithm)}
    short = {place: {"rounds": 10} for place in ("inner", "then") if place in names}
    needed = {field: value for field, value in {"k": 2, "rounds": 10}.items() if field in names}
    run = fit(configure(name, ill, **needed, **short), ill, evaluate_every=5)
    assert run.stopped == ""
    assert not run.not_scored
    assert run.metrics["test_squared_error"] < 1.5 * float(ill.test.y.var())


def test_the_step_that_was_the_default_diverges_there(ill):
    once = corymb.FedAvg(rounds=30, local=Descent(lr=0.5 / 9, steps=10))
    assert fit(once, ill, evaluate_every=5, guard=False).stopped == "diverged"
    guarded = fit(once, ill, evaluate_every=5)
    assert guarded.stopped == ""
    assert {entry["client"] for entry in guarded.ledger.rejected} == {"0"}  # whose steps are too long, and nobody else


@pytest.mark.parametrize("features", [(30,), (500,)])
def test_the_default_step_of_a_table_never_diverges(features):
    import numpy as np

    rng = np.random.default_rng(0)
    common = rng.normal(size=(40, 1))
    x = 1000 * common + rng.normal(size=(40, *features))  # all features go together: the worst case
    data = as_dataset((x, common[:, 0] * 3.0 + 1e4, np.arange(40) % 2), seed=0)
    run = fit(configure("fedavg", data, rounds=5), data)
    losses = [row["train_loss"] for row in run.history]
    assert losses == sorted(losses, reverse=True)


def test_data_are_given_as_for_fit():
    x, y, client = small.arrays()
    data = as_dataset((x, y, client), seed=0)
    clients = [(x[client == who], y[client == who]) for who in np.unique(client)]
    assert configure("fedavg", (x, y, client)) == configure("fedavg", clients) == configure("fedavg", data)
    with pytest.raises(InvalidInput, match="The data are a int: wanted a FederatedDataset"):
        configure("fedavg", 7)


def test_a_misspelled_setting_is_reported_before_a_missing_one():
    with pytest.raises(InvalidInput, match=r"Unknown setting 'kk' for IFCA\. Did you mean 'k'"):
        corymb.configure("ifca", corymb.datasets.digits(clients=4, train=5, test=2), kk=3)


@pytest.mark.parametrize("noise", [0, 1])
def test_a_run_on_labels_without_noise_says_how_to_train_longer(noise):
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(300, 5)), np.repeat(np.arange(2), 150)
    scores = x @ rng.normal(size=(5, 3))
    data = as_dataset((x, (scores + noise * rng.gumbel(size=scores.shape)).argmax(1), client))
    text = repr(fit(configure("fedavg", data), data, evaluate_every=0))
    assert ("steps became short before the training loss settled" in text) == (not noise)
    assert ("try --rounds 320 --local.decay 0.985" in text) == (not noise)
    longer = configure("fedavg", data, rounds=320, local={"decay": 0.985}).local
    assert (longer.lr, longer.decay, longer.safe) == (3.0, 0.985, True)  # the rest stays as it was
