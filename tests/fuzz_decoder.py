"""Has the decoder read what atheris makes up, guided by which lines it reaches: `python -m tests.fuzz_decoder`.

Needs `pip install atheris` (Linux, and a Python that it has a wheel for); options are libFuzzer's, such as
`-max_total_time=60`. Only our own errors may come out; anything else is printed with the bytes that made it.
"""

import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

WATCHED = ["corymb.wire", "corymb.messages", "corymb.trees", "corymb.settings"]


def reader() -> Callable[[bytes], None]:
    """The reader of one input: its first byte selects how the rest is read."""
    from corymb.messages import call_from_bytes, part_from_bytes, snapshot_from_bytes
    from corymb.wire import WireError

    kinds = [call_from_bytes, lambda data: part_from_bytes(data, ""), snapshot_from_bytes]

    def read(data: bytes) -> None:
        if data:
            with suppress(WireError):
                kinds[data[0] % len(kinds)](data[1:])

    return read


def seeds(folder: str) -> None:
    """Good messages to begin with, as files."""
    from tests.test_fuzz import MESSAGES

    for number, kind in enumerate(("call", "part", "snapshot")):
        (Path(folder) / kind).write_bytes(bytes([number]) + MESSAGES[kind][0])


if __name__ == "__main__":
    import atheris

    with atheris.instrument_imports(include=WATCHED):
        read = reader()
    with tempfile.TemporaryDirectory() as folder:
        seeds(folder)
        atheris.Setup([*sys.argv, folder], read)
        atheris.Fuzz()
