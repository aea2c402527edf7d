"""Does the model fit the data? Found out at one client before the first round, so that a mismatch is said in a line."""

from __future__ import annotations

from torch import Tensor

from corymb.core.client import Client, on_client
from corymb.core.federation import Federation, TooFewReplies
from corymb.keys import root
from corymb.settings import InvalidInput
from corymb.trees import Params


@on_client
def try_model(client: Client, model: Params) -> Tensor:
    """The sum of a model's losses, to see whether there are any."""
    return client.objective.losses(model, client.train).sum()


def check_model(fed: Federation) -> None:
    """Refuse a model that cannot take the first client's examples."""
    try:
        fed.evaluation().clients[:1].map(try_model, fed.objective.init(root(0)))
    except InvalidInput:
        raise
    except TooFewReplies:
        return  # the loss is not finite, which is for the run to find out: it may be this client's own fault
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        line = str(error).strip().splitlines()
        raise InvalidInput(f"The model cannot take this data: {line[0] if line else type(error).__name__}.") from error
