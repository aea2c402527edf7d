"""Pickles, written by the standard library and read without it."""

import pickle  # noqa: TID251 - only what is written here is read

import numpy as np
import pytest

from corymb.data.readers.inert import read_inert
from corymb.settings import InvalidInput


class Evil:
    """Runs something when it is unpickled."""

    def __reduce__(self):
        return print, ("this ran",)


def test_plain_values_and_arrays():
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    value = {"data": array, "labels": [1, 2, 70000, None, True], "pair": ("a", {"b": "ü"})}
    read = read_inert(pickle.dumps(value, 3), "it")
    assert np.array_equal(read.pop("data"), array)
    assert read == {"labels": [1, 2, 70000, None, True], "pair": ["a", {"b": "ü"}]}


def test_nothing_runs(capsys):
    assert pickle.loads(pickle.dumps(Evil(), 2)) is None  # noqa: S301 - what it would have done
    assert capsys.readouterr().out == "this ran\n"
    for bad in (Evil(), {"x": [Evil()]}, np.array([Evil()], dtype=object), {1, 2}, print):
        with pytest.raises(InvalidInput, match="is not a pickle of arrays and plain values"):
            read_inert(pickle.dumps(bad, 2), "it")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("data", [b"", b"noise", b"\x80\x02", b"\x80\x02N", b"\x80\x02t.", b"\x80\x02h\x01.", b"."])
def test_damaged(data):
    with pytest.raises(InvalidInput, match="it is not a pickle"):
        read_inert(data, "it")


def test_a_list_in_itself():
    with pytest.raises(InvalidInput, match="it is not a pickle"):
        read_inert(b"\x80\x02]q\x00h\x00a.", "it")
