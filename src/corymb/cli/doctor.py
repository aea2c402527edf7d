"""`corymb doctor`: show the environment and run a small self-test."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator

EXTRAS = {
    "report": ("plotly", "matplotlib", "pandas"),
    "tables": ("pyarrow",),
    "tracking": ("tensorboard",),
    "flower": ("flwr",),
}


def doctor() -> int:
    """Show the environment and run a small self-test."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in facts():
        table.add_row(name, escape(value))
    Console().print(table)
    tests = list(self_tests())
    for name, outcome in tests:
        Console().print(f"{name}: {outcome}", markup=False, highlight=False)
    return int(any("failed" in outcome for _, outcome in tests))


def facts() -> Iterator[tuple[str, str]]:
    """The facts of the environment, as name-value pairs."""
    import torch

    from corymb import __version__
    from corymb.data.fetching.home import cache_folder
    from corymb.runs.plan import available_devices
    from corymb.runs.progress import readable_bytes

    yield "corymb", __version__
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads"
    yield "machine", f"{platform.platform()}, {os.cpu_count()} cores"
    yield "memory", readable_bytes(memory_free()) + " free"
    yield "devices", ", ".join(available_devices())
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        yield f"cuda:{number}", f"{name}, {readable_bytes(free)} of {readable_bytes(total)} free"
    for extra, packages in EXTRAS.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        yield (
            f"extra {extra}",
            f"missing {', '.join(missing)}: pip install 'corymb[{extra}]'" if missing else "installed",
        )
    yield "CORYMB_DATA", _folder(os.environ.get("CORYMB_DATA"))
    yield "cache", str(cache_folder())


def _folder(name: str | None) -> str:
    if not name:
        return "not set: MNIST and Fashion-MNIST are downloaded when first used"
    return name if os.path.isdir(name) else f"{name}, which is not a folder"


def memory_free() -> int:
    """Bytes of free memory; 0 if the system does not report it."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def self_tests() -> Iterator[tuple[str, str]]:
    """Run two rounds of IFCA on every engine and device; yields the name and outcome of each test."""
    from corymb.algorithms import IFCA
    from corymb.data import mixed_regression
    from corymb.runs.fit import fit
    from corymb.runs.plan import available_devices

    data = mixed_regression(n=6, m=8, d=4, k=2, test=4)
    for engine in ("vectorised", "loop"):
        for device in available_devices():
            try:
                run = fit(IFCA(k=2, rounds=2), data, engine=engine, device=device)
                outcome = f"two rounds in {run.seconds:.2f} s"
            except Exception as error:  # report any failure, and go on with the next test
                outcome = f"failed: {type(error).__name__}: {error}"
            yield f"self-test {engine} on {device}", outcome
