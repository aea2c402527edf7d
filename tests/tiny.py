"""The small federations of `corymb.testing`, under the names that older tests use."""

from corymb.testing.assertions import farthest as farthest
from corymb.testing.engines import DOUBLE as DOUBLE
from corymb.testing.engines import IN_PROCESS as ENGINES  # noqa: F401
from corymb.testing.engines import federation as federation
from corymb.testing.small_data import SIZES as SIZES
from corymb.testing.small_data import SmallData as Data  # noqa: F401
from corymb.testing.small_data import SmallRows as Ragged  # noqa: F401
from corymb.testing.small_data import classification as classification
from corymb.testing.small_data import clients as clients
from corymb.testing.small_data import join as join
from corymb.testing.small_data import offsets as offsets
from corymb.testing.small_data import regression as regression
from corymb.testing.small_data import tokens as tokens
