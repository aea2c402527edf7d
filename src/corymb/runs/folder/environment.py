"""The environment of a run: versions, git commit, hardware, platform, seed, command line."""

from __future__ import annotations

import os
import platform
import secrets
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch


def environment(seed: int) -> dict[str, Any]:
    """Facts that may explain a run's numbers later; `run` is a random id of the run."""
    return {
        "versions": versions(),
        "commit": _commit(),
        "platform": platform.platform(),
        "hardware": _hardware(),
        "seed": seed,
        "command": _command(),
        "working_folder": os.getcwd(),
        "run": secrets.token_hex(8),
    }


@cache
def versions() -> dict[str, str]:
    """The versions of the packages that the numbers may depend on."""
    import numpy as np
    import safetensors

    from corymb import __version__

    return {
        "corymb": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
        "python": platform.python_version(),
    }


@cache
def _commit() -> str | None:
    """The git commit of the checkout that this library runs from, with a + if files differ from it."""
    home = Path(__file__).resolve().parents[4]
    if not (home / ".git").exists():
        return None
    commit, changes = _git(home, "rev-parse", "HEAD"), _git(home, "status", "--porcelain", "-uno")
    return None if commit is None else commit + ("+" if changes else "")


def _git(home: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(home), *words], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@cache
def _hardware() -> dict[str, Any]:
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {"processor": _processor(), "cores": os.cpu_count(), "memory": _memory(), **gpu}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _memory() -> int | None:
    """Bytes of memory of the machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not available on some systems
        return None


def _command() -> str:
    words = sys.argv or [""]
    return shlex.join([Path(words[0]).name, *words[1:]])
