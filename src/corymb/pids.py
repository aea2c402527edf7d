"""Which process is which: a pid is given again, so a process is known by its pid and when it began."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path


def began(pid: int) -> str:
    """When a process began, in words of the system's own; empty if there is none, or one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]
    except OSError:
        pass
    if Path("/proc/self").exists():
        return ""
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()


def this_process() -> str:
    """The name of this process among those of all machines: see `has_ended`."""
    pid = os.getpid()
    return f"{_machine()} {pid} {began(pid)}"


def has_ended(name: str) -> bool:
    """Whether the process of that name is known to have ended; of one elsewhere nothing is known."""
    where, _, rest = name.partition(" ")
    pid, _, since = rest.partition(" ")
    return where == _machine() and pid.isdigit() and began(int(pid)) != since


def _machine() -> str:
    """Where pids mean the same processes: this machine since it was started, and in it this space of pids."""
    parts = [socket.gethostname().replace(" ", "-")]
    try:
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()]
        parts += [os.readlink("/proc/self/ns/pid")]
    except OSError:  # not Linux: the name has to do
        pass
    return "/".join(parts)
