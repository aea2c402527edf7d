"""Tiny data on which the advice is known, and the advice on it, computed once."""

from functools import cache

from corymb import advise
from corymb.data import mixed_regression_ifca
from corymb.recipes.advice_cases import near_lines, own_lines

DATA = {
    "clusters": lambda: mixed_regression_ifca(3, n=12, m=40, d=4, k=2, scale=1.0, separation=1.5, test=5),
    "one-model": lambda: near_lines(3, n=12, m=40, d=4),
    "alone": lambda: own_lines(3, n=6, m=60, d=3),
}
FEW = {"rounds": 6, "local": {"steps": 5}}


@cache
def advice_on(name):
    return advise(DATA[name](), given=FEW, threads=1)
