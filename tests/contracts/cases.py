"""The cases of `corymb.testing`, and the recipes' variants, which must satisfy the same laws."""

from corymb.recipes.ifca.theory import FreshIFCA
from corymb.testing import cases
from corymb.testing.assertions import same_bits as same_bits
from corymb.testing.cases import LINE, Case
from corymb.testing.cases import TRUTH as TRUTH
from corymb.testing.cases import run as run

CASES = {**cases.CASES, "IFCA, fresh": Case(FreshIFCA(k=2, rounds=3, local=LINE))}
