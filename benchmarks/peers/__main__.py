"""Corymb beside other libraries on the same work, in one run.

    python -m benchmarks.peers [--cases mlp-100x600 ...] [--ways corymb fedjax ...] [--threads 1 2] [--repeats 2]
                               [--patience 40] [--limit 300] [--keep build/peers] [--write FILE]

Every peer gets an environment of its own, made here from `pinned/NAME.txt` the first time; PIP_FLAGS may say where pip
finds torch's CPU build. All ways start from the same models and take the same batches, which are handed to them as
rows: what a peer's own shuffling and loading costs is not counted against it. Every measurement is a process; with one
thread it is bound to one core. The first round warms up, the least of the others and of all repeats counts. A way that
takes longer than `--patience` seconds is measured once; one that fails, or takes longer than `--limit`, is named below
its table, and the others go on. CPU seconds are those of the process and all its children. FEMNIST wants CORYMB_DATA.

A call that was ended goes on where it was: what is measured is kept in build/peers/measured.jsonl (delete it to begin
anew), and counts towards `--repeats`; Corymb's own only as long as its source is the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.work import CASES, Case, family, load_models, save_models

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OURS = ("corymb", "hand")
PEERS = ("fedjax", "pfl", "fedlab", "flower")
TITLES = {
    "corymb": "Corymb",
    "hand": "by hand",
    "fedjax": "FedJAX",
    "pfl": "pfl",
    "fedlab": "FedLab",
    "flower": "Flower",
}
CANNOT = {"cnn": ("hand",), "k": ("hand", "pfl", "fedlab", "flower")}
"""Which ways have no form of a case: of IFCA only FedJAX has one."""
TIMES = (("cpu", 1), ("wall", 2))
"""What is reported, and of how many threads."""
MEASURED = "measured.jsonl"


def ways_for(case: Case, wanted: list[str]) -> list[str]:
    """The ways that can do a case."""
    cannot = CANNOT["k"] if case.k else CANNOT["cnn"] if case.network == "cnn" else ()
    return [way for way in wanted if way not in cannot]


def python_of(way: str, keep: Path) -> str:
    """The interpreter of a way; a peer's environment is made where it is missing."""
    if way in OURS:
        return sys.executable
    venv = keep / "venvs" / way
    python, pinned = venv / "bin" / "python", HERE / "pinned" / f"{way}.txt"
    if not (venv / ".ready").exists():
        print(f"making the environment of {TITLES[way]} in {venv}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        install = [
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "-r",
            pinned,
            *os.environ.get("PIP_FLAGS", "").split(),
        ]
        subprocess.run(install, check=True)
        (venv / ".ready").touch()
    return str(python)


class Failed(Exception):
    """Why a way has no numbers."""


def measure(way: str, python: str, folder: Path, threads: int, limit: float) -> dict[str, Any]:
    """One process: seconds of its rounds, its memory, its models."""
    settings = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}" if way in OURS else str(ROOT),
        **{name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        "JAX_PLATFORMS": "cpu",
    }
    cores = sorted(os.sched_getaffinity(0))[:threads]
    with tempfile.TemporaryDirectory() as out:
        command = [python, "-m", "benchmarks.peers.one", way, folder.resolve(), out, str(threads)]
        log = Path(out) / "log"
        with log.open("w") as said:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **settings},
                stdout=said,
                stderr=said,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
            memory = Memory(process.pid)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                raise Failed(f"not done after {limit:g} s") from None
            finally:
                _end(process)
                peak = memory.stop()
        if code:
            lines = log.read_text().splitlines()
            print("\n".join(lines[-30:]), file=sys.stderr, flush=True)
            raise Failed(f"ended with {code}: {(lines or [''])[-1][:200]}")
        found = json.loads((Path(out) / "laps.json").read_text())
        later = found["laps"][1:]
        best = {which: min(lap[which] for lap in later) for which in ("wall", "cpu")}
        models = load_models(Path(out) / "models.npz")
        return {**best, "MiB": peak, "versions": found["versions"], "models": models}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing behind of a process that is not done: its children first, who would be nobody's."""
    if process.poll() is None:
        for pid in reversed(family(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


class Memory:
    """The most memory of a process and its children: what they share counts once (PSS)."""

    def __init__(self, pid: int) -> None:
        self.pid, self.most, self._going = pid, 0.0, True
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while self._going:
            self.most = max(self.most, sum(map(_pss, family(self.pid))))
            time.sleep(0.2)

    def stop(self) -> float:
        """MiB."""
        self._going = False
        self._thread.join()
        return self.most


def _pss(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


# ---- are the models the same, and how good are they?


def difference(models: list[Any], others: list[Any]) -> float:
    """The largest between parameters of two ways' models."""
    pairs = zip(models, others, strict=True)
    return max(float(np.abs(a - b).max()) for one, two in pairs for a, b in zip(one, two, strict=True))


def accuracy(models: list[Any], case: Case, folder: Path) -> float:
    """On held-out examples; of clusters, each by the model that fits it best."""
    import torch
    from benchmarks.peers.networks import network, put

    x, y, group = (torch.from_numpy(np.load(folder / f"test-{name}.npy")) for name in ("x", "y", "group"))
    with torch.no_grad():
        right = torch.stack([put(network(case.network), model)(x).argmax(1) == y for model in models]).float()
    return float(
        torch.cat([right[:, group == g][right[:, group == g].mean(1).argmax()] for g in group.unique()]).mean()
    )


# ---- the run


def source() -> str:
    """Which Corymb is measured: the state of its source, or the moment where that has changes of its own."""
    git = ["git", "-C", str(ROOT)]
    state = subprocess.run([*git, "rev-parse", "HEAD:src"], capture_output=True, text=True, check=False)
    changes = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=False)
    clean = not state.returncode and not changes.stdout.strip()
    return state.stdout.strip() if clean else f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"


def kept_rows(keep: Path, of: str) -> list[dict[str, Any]]:
    """What was measured so far, of this Corymb."""
    file = keep / MEASURED
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in rows if row["way"] != "corymb" or row.get("source") == of]


def done(rows: list[dict[str, Any]], case: Case, way: str, threads: int, repeats: int, patience: float) -> bool:
    """Whether a way has been measured often enough."""
    mine = [row for row in rows if (row["case"], row["way"], row["threads"]) == (case.name, way, threads)]
    return len(mine) >= repeats or any("failed" in row or row.get("took", 0.0) > patience for row in mine)


def compare(case: Case, asked: argparse.Namespace, repeats: int, of: str) -> None:
    """Measure every way that has not been measured so many times, and write it down."""
    keep = asked.keep
    folder = keep / "work" / case.name
    if not (folder / "test-x.npy").exists():
        from benchmarks.peers.prepare import prepare

        prepare(case, folder)
    for count in asked.threads:
        for way in ways_for(case, asked.ways):
            if done(kept_rows(keep, of), case, way, count, repeats, asked.patience):
                continue
            began = time.monotonic()
            try:
                row = measure(way, python_of(way, keep), folder, count, asked.limit)
            except (Failed, subprocess.CalledProcessError) as error:  # or its environment cannot be made
                row = {"failed": str(error), "versions": {}}
            row |= {"took": time.monotonic() - began, "source": of if way == "corymb" else ""}
            if "failed" not in row:
                models = row.pop("models")
                if way == "corymb":
                    save_models(folder / "corymb.npz", models)
                row |= {"accuracy": accuracy(models, case, folder)}
                row |= {"difference": difference(models, load_models(folder / "corymb.npz"))}
            row |= {"case": case.name, "way": way, "threads": count, "load": os.getloadavg()[0]}
            print(json.dumps(row), file=sys.stderr, flush=True)
            with (keep / MEASURED).open("a") as kept:
                kept.write(json.dumps(row) + "\n")


def best_of(rows: list[dict[str, Any]], case: Case, way: str) -> dict[str, Any] | None:
    """The least that a way took, over all times it was measured; the largest difference."""
    mine = [row for row in rows if (row["case"], row["way"]) == (case.name, way) and "failed" not in row]
    if not mine:
        return None
    best = {"accuracy": mine[-1]["accuracy"], "difference": max(row["difference"] for row in mine)}
    best["MiB"] = min(row["MiB"] for row in mine)
    for name, threads in TIMES:
        best[name] = min((row[name] for row in mine if row["threads"] == threads), default=None)
    return best


def table(case: Case, rows: list[dict[str, Any]]) -> list[str]:
    """The lines of a case."""
    found = {way: best for way in TITLES if (best := best_of(rows, case, way))}
    if "corymb" not in found:
        return []
    lines = [
        f"## {case.says}",
        "",
        "| | CPU s, one thread | / Corymb's | wall s, two threads | / Corymb's | MiB | accuracy | from Corymb's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way, best in found.items():
        cells = []
        for name, _ in TIMES:
            ours = found["corymb"][name]
            cells += [f"{best[name]:.3f}", f"{best[name] / ours:.2f}"] if best[name] and ours else ["", ""]
        cells += [f"{best['MiB']:.0f}", f"{best['accuracy']:.4f}", f"{best['difference']:.0e}"]
        lines.append(f"| {TITLES[way]} | {' | '.join(cells)} |")
    failures = {
        f"{TITLES[row['way']]}, {row['threads']} threads: {row['failed']}."
        for row in rows
        if row["case"] == case.name and "failed" in row
    }
    return [*lines, "", *sorted(failures), *([""] if failures else [])]


def report(rows: list[dict[str, Any]]) -> str:
    """All tables, with what they were measured on."""
    versions: dict[str, str] = {}
    for row in rows:
        versions |= row["versions"]
    said = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    loads = [row["load"] for row in rows]
    head = f"""# Compared with other libraries, on the same work

{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {said}.
Seconds per round, the minimum of several repeats. "/ Corymb's" is the time divided by Corymb's: above 1, Corymb is
faster. The machine's load was {min(loads):.1f} to {max(loads):.1f} meanwhile. "MiB" is the peak memory of a process and
its children, imports and examples included. "From Corymb's" is the largest difference of a parameter after all rounds.
A library that takes long is measured once. Generated by `python -m benchmarks.peers`.

"""
    return head + "\n".join(line for case in CASES for line in table(case, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--ways", nargs="+", default=[*OURS, *PEERS])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--patience", type=float, default=40.0, help="seconds of a process that is not repeated")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a process is ended")
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "peers", help="for environments and work")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    asked.keep.mkdir(parents=True, exist_ok=True)
    of = source()
    for repeat in range(asked.repeats):  # ways take turns: whatever else the machine does meets them all
        for case in (case for case in CASES if case.name in asked.cases):
            if case.network == "cnn" and "CORYMB_DATA" not in os.environ:
                print(f"{case.name} is left out: CORYMB_DATA is not set", file=sys.stderr)
                continue
            compare(case, asked, repeat + 1, of)
            if asked.write:
                asked.write.write_text(report(kept_rows(asked.keep, of)))
    if rows := kept_rows(asked.keep, of):
        print(report(rows))


if __name__ == "__main__":
    main()
