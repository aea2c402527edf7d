"""CPU seconds of short commands, each in its own process, compared with importing torch on the same machine.

    python -m benchmarks.startup [--repeats 9] [--write FILE]

The commands take turns; the median of the repeats counts, and the ratio to `import torch` is the result: it hardly
depends on the machine or on what else runs there. Modules are compiled before the first repeat, as after the first
run of an installed package.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

TORCH = "import torch"
LINES = [
    "corymb run digits fedavg --rounds 1",
    "corymb run digits fedavg --roundz 1",
    "corymb run --help",
    "corymb run digits fedavk",
    "corymb rum",
    "corymb list algorithms",
    "corymb --help",
]
COMMANDS = {TORCH: ["-c", TORCH], **{line: ["-m", *line.split()] for line in LINES}}


def cpu_seconds(arguments: list[str], folder: str) -> float:
    """User and system seconds of a Python process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(repeats: int) -> dict[str, list[float]]:
    """The seconds of every command, in turns; the first turn, which compiles, does not count."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats + 1):
            for name, arguments in COMMANDS.items():
                seconds = cpu_seconds(arguments, folder)
                if repeat:
                    taken[name].append(seconds)
    return taken


def table(taken: dict[str, list[float]]) -> str:
    """The text of the results."""
    torch_median = statistics.median(taken[TORCH])
    rows = [
        f"| `{name}` | {min(seconds):.2f} | {statistics.median(seconds):.2f} | "
        f"{statistics.median(seconds) / torch_median:.2f} |"
        for name, seconds in taken.items()
    ]
    repeats, today = len(taken[TORCH]), datetime.now(UTC).date()
    about = f"{today}, {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
    return "\n".join(
        [
            "# Start-up",
            "",
            f"`python -m benchmarks.startup`, {about}.",
            f"User and system seconds of a process, {repeats} repeats, commands alternating.",
            "",
            "| command | minimum | median | median relative to `import torch` |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    text = table(measure(args.repeats))
    if args.write:
        args.write.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
