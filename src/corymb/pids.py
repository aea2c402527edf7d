"""Identifies processes by pid and start time, since pids are reused."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path


def began(pid: int) -> str:
    """The start time of a process, in the system's own format; empty if it does not exist or has ended."""
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
    """A name of this process that is unique among all machines: see `has_ended`."""
    pid = os.getpid()
    return f"{_machine()} {pid} {began(pid)}"


def has_ended(name: str) -> bool:
    """Whether the named process is known to have ended; False for processes on other machines."""
    where, _, rest = name.partition(" ")
    pid, _, since = rest.partition(" ")
    return where == _machine() and pid.isdigit() and began(int(pid)) != since


def _machine() -> str:
    """The scope in which pids are unique: this machine since its last boot, and the pid namespace."""
    parts = [socket.gethostname().replace(" ", "-")]
    try:
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()]
        parts += [os.readlink("/proc/self/ns/pid")]
    except OSError:  # not Linux: use the host name only
        pass
    return "/".join(parts)
