"""Data files that cannot be read, each made in a folder of its own; the name says what is wrong."""

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

Make = Callable[[Path], Path]
"""Writes into a folder and returns what to give to `corymb run`."""
GOOD = {"x": np.arange(24.0).reshape(12, 2), "y": np.arange(12) % 2}
ROWS = "client,a,b,label\n" + "".join(f"c{i % 3},{i},{i * i % 7},{i % 2}\n" for i in range(18))


def npz_bytes(**arrays):
    """An npz file as bytes."""
    held = io.BytesIO()
    np.savez(held, **{**GOOD, **arrays})
    return held.getvalue()


def npy_bytes(array):
    """An npy file as bytes."""
    held = io.BytesIO()
    np.lib.format.write_array(held, array)
    return held.getvalue()


def zip_bytes(members, method=zipfile.ZIP_STORED):
    """A zip archive of members by name."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return held.getvalue()


def claimed(shape, descr="<f8", fortran=False, version=(1, 0), data=b""):
    """An npy file whose header claims more data than there are."""
    header = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode()
    header += b" " * ((64 - (len(header) + 11) % 64) % 64) + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H", len(header)) + header + data


def with_x(x, y=None):
    """An npz file in which the array x is given as bytes."""
    return zip_bytes([("x.npy", x), ("y.npy", npy_bytes(GOOD["y"]) if y is None else y)])


def one(name, data):
    """A folder with two good clients' files and one bad one."""

    def make(folder):
        kind = name[name.index(".") :]
        good = npz_bytes() if kind == ".npz" else ROWS.encode()
        if kind == ".npz":
            for other in ("good-1", "good-2"):
                (folder / f"{other}{kind}").write_bytes(good)
            (folder / name).write_bytes(data() if callable(data) else data)
            return folder
        (folder / name).write_bytes(data() if callable(data) else data)
        return folder / name

    return make


def _npz():
    whole = npz_bytes()
    yield from ((f"npz cut to {part} of 16", whole[: len(whole) * part // 16]) for part in range(16))
    for place in (0, 30, 140, 200, len(whole) - 10):
        yield f"npz with another byte at {place}", whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :]
    yield "npz that is text", b"client,a,b\n1,2,3\n"
    yield "npz of nothing but zeros", bytes(1000)
    yield "npz that is an npy file", npy_bytes(GOOD["x"])
    yield "npz without arrays", zip_bytes([])
    yield "npz with a text file", zip_bytes([("readme.txt", b"hello")])
    yield "npz without x", zip_bytes([("y.npy", npy_bytes(GOOD["y"]))])
    yield "npz without y", zip_bytes([("x.npy", npy_bytes(GOOD["x"]))])
    yield "npz of an empty member", with_x(b"")
    yield "npz of a member without its header", with_x(b"\x93NUMPY\x01\x00")
    yield "npz of a member that is text", with_x(b"not an array at all")
    yield "npz of format version 9", with_x(claimed((12, 2), version=(9, 9)))
    yield "npz with a header that is no dict", with_x(b"\x93NUMPY\x01\x00\x08\x00[1, 2] \n")
    yield "npz with a header that is code", with_x(b"\x93NUMPY\x01\x00\x20\x00__import__('os').system('true')\n")
    yield "npz that claims 10 GB", with_x(claimed((10**9, 10)))
    yield "npz that claims more than can be addressed", with_x(claimed((2**62, 2**20)))
    yield "npz of a negative shape", with_x(claimed((-3, 2), data=bytes(48)))
    yield "npz of a shape of floats", with_x(claimed((3.5, 2), data=bytes(48)))
    yield "npz of an unknown type", with_x(claimed((12, 2), descr="<q9"))
    yield "npz of nested types", with_x(claimed((12, 2), descr=[("a", "<f8"), ("b", "<f8")], data=bytes(12 * 2 * 16)))
    yield "npz of Python objects", npz_bytes(x=np.array([[{}], [[]]], dtype=object))
    yield "npz of labels that are Python objects", npz_bytes(y=np.array([{}] * 12, dtype=object))
    yield "npz of complex features", npz_bytes(x=GOOD["x"] * 1j)
    yield "npz of dates", npz_bytes(x=GOOD["x"].astype("datetime64[s]"))
    yield "npz of lengths of time", npz_bytes(x=GOOD["x"].astype("timedelta64[s]"))
    yield "npz of bytes", npz_bytes(x=GOOD["x"].astype("S5"))
    yield "npz of records", npz_bytes(x=np.zeros(12, dtype=[("a", "<f8")]))
    yield "npz of void", npz_bytes(x=np.zeros((12, 2), dtype="V4"))
    yield "npz whose x is a number", npz_bytes(x=np.array(3.0))
    yield "npz whose x is a row", npz_bytes(x=np.arange(12.0))
    yield "npz with no rows", npz_bytes(x=np.zeros((0, 2)), y=np.zeros(0))
    yield "npz with no features", npz_bytes(x=np.zeros((12, 0)))
    yield "npz with too few labels", npz_bytes(y=np.arange(5))
    yield "npz with a table of labels", npz_bytes(y=np.zeros((12, 3)))
    yield "npz with NaN", npz_bytes(x=np.where(GOOD["x"] == 5, np.nan, GOOD["x"]))
    yield "npz with infinity", npz_bytes(x=np.where(GOOD["x"] == 5, np.inf, GOOD["x"]))
    yield "npz with NaN for a label", npz_bytes(y=np.where(GOOD["y"] == 1, np.nan, 0.0))
    yield "npz with complex labels", npz_bytes(y=GOOD["y"] * 1j)
    yield "npz with dates for labels", npz_bytes(y=GOOD["y"].astype("datetime64[D]"))
    yield "npz with another number of features", npz_bytes(x=np.zeros((12, 5)))
    yield "npz with a mask of text", npz_bytes(test=np.array(["perhaps"] * 12))
    yield "npz with a short mask", npz_bytes(test=np.array([True, False]))
    yield "npz with text for features", npz_bytes(x=np.full((12, 2), "a"))
    yield "npz packed by a method of its own", _other_method(with_x(npy_bytes(GOOD["x"])))
    yield "npz that says it is encrypted", _encrypted(whole)


def _other_method(data):
    return data.replace(b"PK\x03\x04\x14\x00\x00\x00\x00\x00", b"PK\x03\x04\x14\x00\x00\x00\x63\x00").replace(
        b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x63\x00"
    )


def _encrypted(data):
    out = bytearray(data)
    for sign, flag in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = out.find(sign)
        while place >= 0:
            out[place + flag] |= 1
            place = out.find(sign, place + 4)
    return bytes(out)


def _tables():
    lines = ROWS.splitlines()
    yield "csv of nothing", ".csv", b""
    yield "csv of blank lines", ".csv", b"\n\n\n"
    yield "csv of a header", ".csv", lines[0].encode()
    yield "csv with two columns of one name", ".csv", ROWS.replace("client,a,b", "client,a,a").encode()
    yield "csv with names that are blank", ".csv", ROWS.replace("client,a,b", "client,,").encode()
    yield "csv with a short row", ".csv", (ROWS + "c1,2\n").encode()
    yield "csv with a long row", ".csv", (ROWS + "c1,2,3,0,9,9\n").encode()
    yield "csv with a blank line inside", ".csv", (ROWS + "\n\nc1,2,3,0\n").encode()
    yield "csv that is not UTF-8", ".csv", ROWS.replace("c0", "ü").encode("latin-1")
    yield "csv with one cell of 200,000 characters", ".csv", (ROWS + f"c1,{'9' * 200_000},3,0\n").encode()
    yield "csv with an open quote", ".csv", (ROWS + '"c1,2,3,0\n').encode()
    yield "csv without labels", ".csv", ROWS.replace("label", "other").encode()
    yield "csv with a missing label", ".csv", (ROWS + "c1,2,3,\n").encode()
    yield "csv with a missing cell", ".csv", (ROWS + "c1,,3,0\n").encode()
    yield "csv with infinity", ".csv", (ROWS + "c1,inf,3,0\n").encode()
    yield "csv with no name for a client", ".csv", (ROWS + ",2,3,0\n").encode()
    yield "csv of random bytes", ".csv", bytes(range(256)) * 8
    yield "csv with labels of many kinds", ".csv", (ROWS + "c1,2,3,yes\nc1,2,3,0.5\n").encode()
    yield "csv in UTF-16", ".csv", ROWS.encode("utf-16")
    yield "tsv with commas", ".tsv", ROWS.encode()
    yield "tsv of nothing", ".tsv", b""
    rows = [{"client": f"c{i % 3}", "a": i, "label": i % 2} for i in range(12)]
    good = "".join(json.dumps(row) + "\n" for row in rows)
    yield "jsonl of nothing", ".jsonl", b""
    yield "jsonl that is no JSON", ".jsonl", b"{a: 1}\n"
    yield "jsonl of lists", ".jsonl", b"[1, 2]\n"
    yield "jsonl of numbers", ".jsonl", b"3\n4\n"
    yield "jsonl of null", ".jsonl", b"null\n"
    yield "jsonl cut in a row", ".jsonl", good[:-9].encode()
    yield "jsonl with deep nesting", ".jsonl", (good + "[" * 100_000 + "\n").encode()
    yield "jsonl with deep nesting in a cell", ".jsonl", (good + '{"a": ' + "[" * 50_000 + "\n").encode()
    yield (
        "jsonl with a cell that is a dict",
        ".jsonl",
        (good + '{"client": "c1", "a": {"b": 1}, "label": 0}\n').encode(),
    )
    yield "jsonl with a cell that is a list", ".jsonl", (good + '{"client": "c1", "a": [1], "label": 0}\n').encode()
    yield "jsonl with another key", ".jsonl", (good + '{"client": "c1", "q": 1, "label": 0}\n').encode()
    yield "jsonl with an infinite label", ".jsonl", (good + '{"client": "c1", "a": 1, "label": Infinity}\n').encode()
    yield "jsonl with NaN", ".jsonl", (good + '{"client": "c1", "a": NaN, "label": 0}\n').encode()
    yield (
        "jsonl with a number of 5,000 digits",
        ".jsonl",
        (good + f'{{"client": "c1", "a": {"9" * 5000}, "label": 0}}\n').encode(),
    )
    yield "jsonl that is not UTF-8", ".jsonl", good.encode() + b'{"client": "\xff", "a": 1, "label": 0}\n'
    yield "jsonl with two labels a row", ".jsonl", (good + '{"client": "c1", "a": 1, "label": [0, 1]}\n').encode()
    yield "csv.gz that is not packed", ".csv.gz", ROWS.encode()
    yield "csv.gz of nothing", ".csv.gz", b""
    packed = gzip.compress(ROWS.encode())
    yield from ((f"csv.gz cut to {part} of 8", ".csv.gz", packed[: len(packed) * part // 8]) for part in range(1, 8))
    yield "csv.gz with another byte inside", ".csv.gz", packed[:40] + b"\x00" + packed[41:]
    yield "csv.gz with a wrong check sum", ".csv.gz", packed[:-8] + bytes(8)
    yield "jsonl.gz that is not packed", ".jsonl.gz", good.encode()
    rest = "".join(json.dumps({"client": f"c{i % 3}", "a": i, "label": i % 2}) + "\n" for i in range(12))
    yield (
        "jsonl with a number beyond all floats",
        ".jsonl",
        (rest + f'{{"client": "c1", "a": {"9" * 400}, "label": 0}}\n').encode(),
    )
    yield "csv with a name of 2,000 letters", ".csv", (ROWS + "w" * 2000 + ",1,2,0\n").encode()
    yield "parquet of nothing", ".parquet", b""
    yield "parquet that is text", ".parquet", ROWS.encode()
    yield "parquet of marks alone", ".parquet", b"PAR1" + bytes(100) + b"PAR1"
    yield "a file of an unknown kind", ".xlsx", ROWS.encode()
    yield "a file without a kind", ".", ROWS.encode()
    yield "a pickle", ".pkl", b"\x80\x04\x95cos\nsystem\n."
    yield "a torch file", ".pt", b"PK\x03\x04"


FILES: dict[str, Make] = {
    **{name: one("bad.npz", data) for name, data in _npz()},
    **{name: one(f"bad{kind}", data) for name, kind, data in _tables()},
}


def _folder(*files):
    def make(folder):
        for name, data in files:
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return folder

    return make


FOLDERS: dict[str, Make] = {
    "an empty folder": _folder(),
    "a folder of hidden files": _folder((".DS_Store", b"x")),
    "a folder of two kinds": _folder(("a.csv", ROWS.encode()), ("b.npz", npz_bytes())),
    "a folder with a folder inside": _folder(("a.npz", npz_bytes()), ("more/b.npz", npz_bytes())),
    "a folder with a readme": _folder(("a.npz", npz_bytes()), ("README.md", b"# data")),
    "a folder whose files have other columns": _folder(
        ("a.csv", b"a,label\n1,0\n2,1\n"), ("b.csv", b"b,label\n1,0\n2,1\n")
    ),
    "a path that is not there": lambda folder: folder / "nothing" / "here",
    "a user who is not there": lambda folder: Path("~nosuchuser/data"),
    "a name that is not there": lambda folder: Path("digitz"),
    "a path with a zero byte": lambda folder: Path("a\x00b"),
    "a path that is far too long": lambda folder: Path("x" * 5000),
    "a device": lambda folder: Path("/dev/null"),
}
