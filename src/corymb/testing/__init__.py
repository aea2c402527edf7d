"""The contract suite: laws that every algorithm and every engine must satisfy, including yours.

`check_algorithm` and `check_engine` run all laws that apply. The laws themselves are plain functions in
`corymb.testing.laws` that need no test runner; call them one by one from your own tests if a failure should name its
law.
"""

from corymb.testing.suite import check_algorithm, check_engine

__all__ = ["check_algorithm", "check_engine"]
