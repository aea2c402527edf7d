"""Which kernel computes an operation: a pure function of model, optimiser and device."""

from __future__ import annotations

from corymb.choices import KernelName
from corymb.engines.vectorised.traits import Traits
from corymb.local.descent import Descent

SMALL_MODEL = 2**16
"""Up to this many parameters, Python overhead per client outweighs the arithmetic on a CPU: clients run together."""
BATCH_BYTES = 2**21
"""Above this many bytes of activations per batch, a single thread is faster client by client."""
CNN_BYTES, RNN_BYTES, LSTM_BYTES = 2**20, 2**20, 2**16
"""Up to this many bytes of activations per batch, clients run together on a CPU: limits for convolutional models, for
recurrent ones (half of it for GRUs), and for LSTMs, which oneDNN makes fast for a single client. Measured with 16 to
200 clients: at these limits, running together is 1.1 to 1.8 times as fast."""
LARGE_MODEL, SMALL_BATCH = 300_000, 20
"""With at least this many parameters and at most this many examples per step, one thread is faster client by client
than with stacked linear layers. Measured: 1.08 to 1.3 times as fast; slower with 25 examples or 250,000 parameters."""


def choose(
    traits: Traits,
    how: Descent | None,
    device: str,
    threads: int,
    *,
    mixed: bool = False,
    examples: int | None = None,
    together: bool = False,
) -> KernelName:
    """The kernel for a model, an optimiser (`None`: a measure or a gradient) and a device.

    `examples` is how many examples of a client pass through its model at once, if known. `together` says whether a
    convolutional or recurrent model can run for many clients at once; that is done if the work is little (`is_little`).
    """
    if device == "cpu" and (traits.convolutional or traits.recurrent):
        little = together and examples is not None and not mixed and is_little(traits, examples)
        return "foreach" if little else "serial"
    if traits.fusable and not mixed and (how is None or how.plain):
        return "serial" if threads == 1 and device == "cpu" and how is not None and fits_cache(traits, how) else "fused"
    passing = 0 if how is None or examples is None else examples * traits.activation_bytes
    if device == "cpu" and threads == 1 and (traits.parameters > SMALL_MODEL or passing > BATCH_BYTES):
        return "serial"  # one thread gains nothing from batching large products
    return "foreach"


def fits_cache(traits: Traits, how: Descent) -> bool:
    """Whether it pays to take all steps of one client before those of the next: small steps of a large model.

    A stack of large models does not fit a processor's caches, so each step of all clients reads and writes all of it in
    memory; one model stays in the caches from step to step. Products of more than a few examples hide that.
    """
    small = how.batch is not None and how.batch <= SMALL_BATCH and not how.safe
    return small and traits.parameters >= LARGE_MODEL


def is_little(traits: Traits, examples: int) -> bool:
    """Whether a batch of this size is too little work to run a convolutional or recurrent model client by client."""
    gated = any(one.kind == "gru" for one in traits.recurrences)
    most = LSTM_BYTES if traits.lstm else RNN_BYTES // 2 if gated else RNN_BYTES if traits.recurrent else CNN_BYTES
    return examples * traits.activation_bytes <= most and traits.parameters <= SMALL_MODEL
