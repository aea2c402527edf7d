import pytest
import torch

from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.faults import KINDS, Fault, inject, read_faults
from corymb.faults.engine import write_faults
from corymb.settings import InvalidInput
from corymb.testing.cases import CASES
from corymb.testing.engines import ENGINES
from tests.tiny import farthest


def last(name, engine, *faults, seed=0):
    case = CASES[name]
    fed = Federation(inject(case.engine(engine), faults, seed))
    return list(drive(case.algorithm, fed, seed=3))[-1], fed


@pytest.mark.parametrize("engine", ENGINES)
def test_no_fault_changes_nothing(engine):
    assert farthest(last("IFCA", engine)[0].models, last("IFCA", engine, Fault("nan", share=0.0))[0].models) == 0


@pytest.mark.parametrize("fault", ["noise", "hop", "dropout", "scaled"])
def test_a_seed_gives_the_same_faults_on_every_engine(fault):
    runs = [last("IFCA", engine, Fault(fault, share=0.3, always=False), seed=5)[0] for engine in ENGINES]
    assert max(farthest(run.models, runs[0].models) for run in runs) < 1e-9
    other = last("IFCA", "vectorised", Fault(fault, share=0.3, always=False), seed=6)[0]
    assert farthest(other.models, runs[0].models) > 1e-9


def test_faults_are_read_as_they_are_written():
    assert read_faults("nan:0.1, dropout:0.3") == [Fault("nan", share=0.1), Fault("dropout", share=0.3, always=False)]
    assert read_faults("huge@client-3") == [Fault("huge", clients=("client-3",))]
    for text in ("nan:0.1,dropout:0.3", "huge@client-3,nan:0.123456789012", "nan:0.0"):
        assert write_faults(read_faults(text)) == text  # a run folder keeps them so, and a run goes on with them


@pytest.mark.parametrize("text", ["nosuch:0.1", "nan:x", "nan:2", "", "nan:-1"])
def test_unreadable_input_is_refused(text):
    with pytest.raises(InvalidInput):
        read_faults(text)


def test_a_client_that_is_not_there_has_no_fault():
    with pytest.raises(InvalidInput, match="nobody"):
        last("FedAvg", "loop", Fault("nan", clients=("nobody",)))


def test_a_stale_reply_is_an_earlier_one():
    """Over the wire: the first round's reply is repeated, which cannot be detected but is harmless."""
    honest, stale = last("FedAvg", "wired")[0], last("FedAvg", "wired", Fault("stale", clients=("client-3",)))[0]
    assert 0 < farthest(honest.models, stale.models) < 10
    assert torch.isfinite(stale.models["weight"]).all()


def test_evaluation_is_the_honest_clients_own():
    fed = Federation(inject(CASES["FedAvg"].engine("loop"), [Fault("nan", share=1.0)]))
    from corymb.local import losses_of

    models = {"weight": torch.zeros(1, 3, dtype=torch.float64)}
    assert len(fed.evaluation().clients.map(losses_of, models).clients) == 7


def test_there_are_enough_kinds():
    assert len(KINDS) >= 25
