"""Data sets: the public name of `corymb.data`."""

from corymb.data import *  # noqa: F403
from corymb.data import __all__ as __all__
