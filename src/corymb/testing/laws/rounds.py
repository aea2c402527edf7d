"""Laws of rounds with too few replies."""

from __future__ import annotations

from corymb.algorithms import FedAvg
from corymb.core.federation import TooFewReplies
from corymb.settings import InvalidInput
from corymb.testing.assertions import assert_same_bits, collected_warnings, expect_error
from corymb.testing.cases import LINE, TRUTH, Case, run
from corymb.testing.engines import AnyEngine
from corymb.testing.keeper import Fragile


def check_abandoned_round(engine: AnyEngine) -> None:
    """A round with too few replies is retried at the next clock, and leaves nothing in client memory."""
    case = Case(Fragile(rounds=4, bad=(1, 4, 5)))
    fed = case.federation(engine)
    with collected_warnings() as messages:
        got = list(run(case, fed, seed=1))
    assert [at.clock for at in got] == [1, 3, 4, 7]
    assert [at.round for at in got] == [1, 2, 3, 4]
    assert [at.notes["visits"][0] for at in got] == [1, 2, 3, 4]
    assert len({at.notes["draw"] for at in got}) == 4
    assert len([line for line in messages if "abandoned" in line]) == 3
    assert fed.ledger.rounds == 4
    assert len(fed.ledger.rejected) == 3 * len(TRUTH)
    for place in reversed(range(4)):
        assert_same_bits(list(run(case, fed, got[place])), got[place + 1 :])


def check_abandoned_first_round(engine: AnyEngine) -> None:
    """The first round may be abandoned as well."""
    case = Case(Fragile(rounds=2, bad=(0, 1)))
    assert [at.clock for at in run(case, case.federation(engine))] == [3, 4]


def check_three_abandoned_rounds(engine: AnyEngine) -> None:
    """Three abandoned rounds in a row end the run; two do not."""
    case = Case(Fragile(rounds=4, bad=(1, 2, 3)))
    snapshots = run(case, case.federation(engine))
    assert next(snapshots).clock == 1
    with expect_error(TooFewReplies, "0 of 7 clients gave a usable reply, wanted 1"):
        next(snapshots)
    ends_well = Case(Fragile(rounds=4, bad=(1, 2)))
    assert len(list(run(ends_well, ends_well.federation(engine)))) == 4


def check_min_replies(engine: AnyEngine) -> None:
    """`min_replies` is the least number of replies of a round, limited to the number of clients asked."""
    case = Case(FedAvg(rounds=1, local=LINE, participants=3))
    for wanted in (3, 7, 1):
        assert len(list(run(case, case.federation(engine, min_replies=wanted)))) == 1
    with expect_error(InvalidInput, "min_replies"):
        case.federation(engine, min_replies=0)
