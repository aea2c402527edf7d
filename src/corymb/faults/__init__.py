"""Fault injection: clients that lie, fail, drop out or send invalid replies, chosen by the seed, on any engine.

>>> [fault.name for fault in read_faults("dropout:0.3,nan:0.1")]
['dropout', 'nan']
"""

from corymb.faults.engine import Fault, Faulty, inject, read_faults
from corymb.faults.kinds import KINDS, Kind

__all__ = ["KINDS", "Fault", "Faulty", "Kind", "inject", "read_faults"]
