"""Doctests are looked for in every module of the library, but for those of extras that are not installed."""

from importlib.util import find_spec

FLOWER = ["src/corymb/engines/flower/*.py", "src/corymb/flower_app.py", "src/corymb/cli/flower/keys.py"]
collect_ignore_glob = [
    *([] if find_spec("flwr") else FLOWER),
    *([] if find_spec("ray") else ["src/corymb/engines/ray.py"]),
    *([] if find_spec("triton") else ["src/corymb/core/lengths/distance_kernel.py"]),
]
