"""The contract suite: laws that every algorithm and every engine must keep, yours included.

`check_algorithm` and `check_engine` run all that apply. The laws themselves are plain functions in
`corymb.testing.laws` that need no test runner; call them one by one from tests of your own where a failure should name
its law.
"""

from corymb.testing.suite import check_algorithm, check_engine

__all__ = ["check_algorithm", "check_engine"]
