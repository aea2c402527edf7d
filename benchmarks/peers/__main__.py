"""Compares Corymb with other libraries on the same work, in one run.

    python -m benchmarks.peers [--cases mlp-100x600 ...] [--libraries corymb fedjax ...] [--threads 1 2] [--repeats 2]
                               [--patience 40] [--limit 300] [--keep build/peers] [--write FILE]

Every other library gets its own environment, created from `pinned/NAME.txt` the first time; PIP_FLAGS may tell pip
where torch's CPU build is. All start from the same models and take the same batches, which are given to them as rows,
so that the cost of a library's own shuffling and loading does not count. Every measurement is a process; with one
thread it is bound to one core. The first round warms up; the minimum of the other rounds and of all repeats counts. A
library that takes longer than `--patience` seconds is measured once; one that fails, or takes longer than `--limit`, is
named below its table, and the others continue. CPU seconds are those of the process and all its children. FEMNIST needs
CORYMB_DATA.

An interrupted run continues when the command is repeated: measurements are kept in build/peers/measured.jsonl (delete
it to start over) and count towards `--repeats`; Corymb's own only as long as its source is the same.
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
UNSUPPORTED = {"cnn": ("hand",), "k": ("hand", "pfl", "fedlab", "flower")}
"""Libraries that cannot run a case: only FedJAX has IFCA."""
TIMES = (("cpu", 1), ("wall", 2))
"""The times reported, each with its number of threads."""
MEASURED = "measured.jsonl"


def libraries_for(case: Case, wanted: list[str]) -> list[str]:
    """The libraries that can run a case."""
    unsupported = UNSUPPORTED["k"] if case.k else UNSUPPORTED["cnn"] if case.network == "cnn" else ()
    return [library for library in wanted if library not in unsupported]


def python_of(library: str, keep: Path) -> str:
    """The interpreter for a library; creates the library's environment if it is missing."""
    if library in OURS:
        return sys.executable
    venv = keep / "venvs" / library
    python, pinned = venv / "bin" / "python", HERE / "pinned" / f"{library}.txt"
    if not (venv / ".ready").exists():
        print(f"creating the environment of {TITLES[library]} in {venv}", file=sys.stderr, flush=True)
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
    """A measurement failed; the message is the reason."""


def measure(library: str, python: str, folder: Path, threads: int, limit: float) -> dict[str, Any]:
    """Measure in one process: seconds of its rounds, its memory, and its models."""
    settings = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}" if library in OURS else str(ROOT),
        **{name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        "JAX_PLATFORMS": "cpu",
    }
    cores = sorted(os.sched_getaffinity(0))[:threads]
    with tempfile.TemporaryDirectory() as out:
        command = [python, "-m", "benchmarks.peers.one", library, folder.resolve(), out, str(threads)]
        log = Path(out) / "log"
        with log.open("w") as log_file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **settings},
                stdout=log_file,
                stderr=log_file,
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
    """Kill a process that is not done, and its children before it, which would otherwise be orphaned."""
    if process.poll() is None:
        for pid in reversed(family(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


class Memory:
    """The peak memory of a process and its children; memory that they share counts once (PSS)."""

    def __init__(self, pid: int) -> None:
        self.pid, self.most, self._going = pid, 0.0, True
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while self._going:
            self.most = max(self.most, sum(map(_pss, family(self.pid))))
            time.sleep(0.2)

    def stop(self) -> float:
        """The peak in MiB."""
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
    """The largest difference between parameters of two libraries' models."""
    pairs = zip(models, others, strict=True)
    return max(float(np.abs(a - b).max()) for one, two in pairs for a, b in zip(one, two, strict=True))


def accuracy(models: list[Any], case: Case, folder: Path) -> float:
    """The accuracy on held-out examples; each true cluster uses the model that fits it best."""
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
    """Identifies the Corymb that is measured: by the git tree of its source, or by the time if there are changes."""
    git = ["git", "-C", str(ROOT)]
    state = subprocess.run([*git, "rev-parse", "HEAD:src"], capture_output=True, text=True, check=False)
    changes = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=False)
    clean = not state.returncode and not changes.stdout.strip()
    return state.stdout.strip() if clean else f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"


def kept_rows(keep: Path, source_state: str) -> list[dict[str, Any]]:
    """The measurements so far; Corymb's only from the same source."""
    file = keep / MEASURED
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in rows if row["library"] != "corymb" or row.get("source") == source_state]


def done(rows: list[dict[str, Any]], case: Case, library: str, threads: int, repeats: int, patience: float) -> bool:
    """Whether a library has been measured often enough."""
    mine = [row for row in rows if (row["case"], row["library"], row["threads"]) == (case.name, library, threads)]
    return len(mine) >= repeats or any("failed" in row or row.get("took", 0.0) > patience for row in mine)


def compare(case: Case, args: argparse.Namespace, repeats: int, source_state: str) -> None:
    """Measure every library that has been measured fewer than `repeats` times, and record it."""
    keep = args.keep
    folder = keep / "work" / case.name
    if not (folder / "test-x.npy").exists():
        from benchmarks.peers.prepare import prepare

        prepare(case, folder)
    for count in args.threads:
        for library in libraries_for(case, args.libraries):
            if done(kept_rows(keep, source_state), case, library, count, repeats, args.patience):
                continue
            began = time.monotonic()
            try:
                row = measure(library, python_of(library, keep), folder, count, args.limit)
            except (Failed, subprocess.CalledProcessError) as error:  # or its environment cannot be created
                row = {"failed": str(error), "versions": {}}
            row |= {"took": time.monotonic() - began, "source": source_state if library == "corymb" else ""}
            if "failed" not in row:
                models = row.pop("models")
                if library == "corymb":
                    save_models(folder / "corymb.npz", models)
                row |= {"accuracy": accuracy(models, case, folder)}
                row |= {"difference": difference(models, load_models(folder / "corymb.npz"))}
            row |= {"case": case.name, "library": library, "threads": count, "load": os.getloadavg()[0]}
            print(json.dumps(row), file=sys.stderr, flush=True)
            with (keep / MEASURED).open("a") as kept:
                kept.write(json.dumps(row) + "\n")


def best_of(rows: list[dict[str, Any]], case: Case, library: str) -> dict[str, Any] | None:
    """A library's minimum times over all measurements, and its largest difference."""
    mine = [row for row in rows if (row["case"], row["library"]) == (case.name, library) and "failed" not in row]
    if not mine:
        return None
    best = {"accuracy": mine[-1]["accuracy"], "difference": max(row["difference"] for row in mine)}
    best["MiB"] = min(row["MiB"] for row in mine)
    for name, threads in TIMES:
        best[name] = min((row[name] for row in mine if row["threads"] == threads), default=None)
    return best


def table(case: Case, rows: list[dict[str, Any]]) -> list[str]:
    """The lines of the table of a case."""
    found = {library: best for library in TITLES if (best := best_of(rows, case, library))}
    if "corymb" not in found:
        return []
    lines = [
        f"## {case.says}",
        "",
        "| | CPU s, one thread | / Corymb's | wall s, two threads | / Corymb's | MiB | accuracy | from Corymb's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for library, best in found.items():
        cells = []
        for name, _ in TIMES:
            ours = found["corymb"][name]
            cells += [f"{best[name]:.3f}", f"{best[name] / ours:.2f}"] if best[name] and ours else ["", ""]
        cells += [f"{best['MiB']:.0f}", f"{best['accuracy']:.4f}", f"{best['difference']:.0e}"]
        lines.append(f"| {TITLES[library]} | {' | '.join(cells)} |")
    failures = {
        f"{TITLES[row['library']]}, {row['threads']} threads: {row['failed']}."
        for row in rows
        if row["case"] == case.name and "failed" in row
    }
    return [*lines, "", *sorted(failures), *([""] if failures else [])]


def report(rows: list[dict[str, Any]]) -> str:
    """All tables, with a description of the machine and the versions."""
    versions: dict[str, str] = {}
    for row in rows:
        versions |= row["versions"]
    deps = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    loads = [row["load"] for row in rows]
    head = f"""# Compared with other libraries, on the same work

{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {deps}.
Seconds per round, the minimum of several repeats. "/ Corymb's" is the time divided by Corymb's: above 1, Corymb is
faster. The machine's load was {min(loads):.1f} to {max(loads):.1f} meanwhile. "MiB" is the peak memory of a process and
its children, imports and examples included. "From Corymb's" is the largest difference of a parameter after all rounds.
A library that takes long is measured once. Generated by `python -m benchmarks.peers`.

"""
    return head + "\n".join(line for case in CASES for line in table(case, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--libraries", nargs="+", default=[*OURS, *PEERS])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--patience", type=float, default=40.0, help="seconds above which a measurement is not repeated"
    )
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a process is killed")
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "peers", help="for environments and work")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    args.keep.mkdir(parents=True, exist_ok=True)
    source_state = source()
    for repeat in range(args.repeats):  # libraries take turns, so that other load on the machine affects all of them
        for case in (case for case in CASES if case.name in args.cases):
            if case.network == "cnn" and "CORYMB_DATA" not in os.environ:
                print(f"{case.name} is left out: CORYMB_DATA is not set", file=sys.stderr)
                continue
            compare(case, args, repeat + 1, source_state)
            if args.write:
                args.write.write_text(report(kept_rows(args.keep, source_state)))
    if rows := kept_rows(args.keep, source_state):
        print(report(rows))


if __name__ == "__main__":
    main()
