"""Every engine and every kernel satisfies the laws of `corymb.testing.laws`; the loop is the reference."""

import pytest

from corymb.engines import Placement
from corymb.testing.engines import ENGINES
from corymb.testing.laws import calls, memory, serving
from corymb.testing.laws import engines as laws
from corymb.testing.laws.engines import HOWS, with_kernel
from corymb.testing.learners import LEARNERS
from corymb.testing.suite import ANY_CALL

KERNELS = [None, "fused", "foreach", "serial"]
FEW = ("full batch", "momentum")
MANY = {"linear", "mlp", "cnn", "lstm", "layer used twice"}  # these go through all of HOWS
every_engine = pytest.mark.parametrize("engine", ENGINES)
every_kernel = pytest.mark.parametrize(
    ("learner", "kernel"),
    [(name, None) for name in LEARNERS]
    + [(name, kernel) for name in LEARNERS for kernel in LEARNERS[name].kernels]
    + [(name, "fused") for name in ("layer used twice", "lstm", "transposed weight")],  # which must fall back
)


def made(name):
    """An engine by name, or a vectorised one with this kernel."""
    return name if name in ("loop", "wired") else with_kernel(name)


@every_kernel
def test_every_kernel_measures_like_the_loop(learner, kernel):
    laws.check_measures(learner, with_kernel(kernel))


@every_kernel
def test_every_kernel_descends_like_the_loop(learner, kernel):
    for how in HOWS if learner in MANY and kernel in LEARNERS[learner].kernels else FEW:
        laws.check_descends(learner, with_kernel(kernel), how)


@pytest.mark.parametrize("learner", LEARNERS)
def test_clients_on_the_wire_measure_and_descend_like_the_loop(learner):
    laws.check_measures(learner, "wired")
    laws.check_descends(learner, "wired", "momentum")


@pytest.mark.parametrize("kernel", ["loop", "wired", *KERNELS])
def test_neither_order_nor_other_clients_change_a_clients_numbers(kernel):
    laws.check_order_and_company("mlp", made(kernel))


@pytest.mark.parametrize("kernel", ["loop", "wired", *KERNELS])
def test_another_client_changes_no_other_clients_numbers(kernel):
    laws.check_further_client(made(kernel))


@pytest.mark.parametrize("kernel", ["wired", *KERNELS])
@pytest.mark.parametrize("learner", ["linear", "layer used twice"])
def test_examples_may_have_other_weights_or_weight_zero(learner, kernel):
    laws.check_weights_of_examples(learner, made(kernel))


@pytest.mark.parametrize("kernel", ["wired", *KERNELS])
def test_a_client_may_have_no_examples_at_all(kernel):
    laws.check_no_examples(made(kernel))


@pytest.mark.parametrize("kernel", ["wired", None, "foreach", "serial"])
def test_each_client_gets_its_own_row(kernel):
    calls.check_rows_of_each(made(kernel))


@every_engine
@pytest.mark.parametrize("law", ANY_CALL, ids=lambda law: law.__name__)
def test_calls_and_memory(law, engine):
    law(engine)


@every_engine
@pytest.mark.parametrize("learner", ["linear", "features", "mlp"])
def test_serving_a_mixture(learner, engine):
    serving.check_mixture(learner, engine)


@every_engine
@pytest.mark.parametrize("learner", ["linear", "mlp"])
def test_serving_one_model(learner, engine):
    serving.check_one_model(learner, engine)


@pytest.mark.parametrize("law", [memory.check_lost_replies, memory.check_lost_replies_after_resume])
@pytest.mark.parametrize("remembers", memory.REMEMBERING)
def test_a_reply_that_was_lost_leaves_nothing_in_client_memory(law, remembers):
    law(memory.REMEMBERING[remembers])


@pytest.mark.parametrize(
    ("learner", "kernel"),
    [
        *(("linear", kernel) for kernel in ["loop", "wired", *KERNELS]),
        ("mlp", None),
        ("layer used twice", "foreach"),
    ],
)
def test_a_users_own_vmap_over_models_folds_into_the_clients(learner, kernel):
    calls.check_own_vmap(learner, made(kernel))


@pytest.mark.parametrize(
    ("learner", "kernel"),
    [
        *(("mlp", kernel) for kernel in ["loop", *KERNELS]),
        *((learner, kernel) for learner in ("linear", "cnn", "lstm") for kernel in ("loop", None)),
        ("linear", "wired"),
    ],
)
@pytest.mark.parametrize("placement", [Placement(mixed=True), Placement(tf32=True)], ids=["bfloat16", "tf32"])
def test_low_precision_runs_and_stays_near(learner, kernel, placement):
    laws.check_coarse_arithmetic(learner, made(kernel), placement)
