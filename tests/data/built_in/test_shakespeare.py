import gzip
import json
import os
from dataclasses import replace
from hashlib import sha256

import pytest

from corymb.data import by_role, load
from corymb.data.built_in import shakespeare
from corymb.data.built_in.roles import LENGTH, Roles
from corymb.data.fetching.home import DataUnavailable, Published
from corymb.settings import InvalidInput
from tests.data.built_in.test_roles import text
from tests.data.fetching.server import server as server
from tests.data.readers.test_leaf import write_shard

PLAY = """\tHAMLET

HAMLET\tson to the late, and nephew to the present king.

ACT I

SCENE I\tElsinore. A platform before the castle.

\t[FRANCISCO at his post. Enter to him
\tBERNARDO]

BERNARDO\tWho's there?

FRANCISCO\tNay, answer me:  stand,
\t[Aside]  and unfold yourself.

\tHAMLET

\tlost words

BERNARDO:\t[Reads]

\tLong live
\tthe king!

CORNELIUS\t|
\t|  In that and all things will we show our duty.
VOLTIMAND\t|

HAMLET\t[Dies]

SCENE II\tThe same.

FRANCISCO\tHe.
"""
SPEECHES = {
    "BERNARDO": ["Who's there?", "Long live the king!"],
    "FRANCISCO": ["Nay, answer me: stand, and unfold yourself.", "He."],
    "CORNELIUS": ["In that and all things will we show our duty."],
}


def test_a_play():
    assert shakespeare.parse_play(PLAY) == SPEECHES
    assert shakespeare.parse_play("") == shakespeare.parse_play("\tTITLE\n\nno acts") == {}


def test_plays_are_downloaded_once(server):
    server.serve("plays/one.txt", PLAY.encode())
    file = Published("one.txt", 2**18, sha256(PLAY.encode()).hexdigest())
    home = replace(shakespeare.SHAKESPEARE, mirrors=(f"{server.url}/plays/",), files=(file,))
    for _ in range(2):
        roles = shakespeare.read_published(home)
        assert roles.texts["one/BERNARDO"] == "Who's there? Long live the king!"
    assert len(server.asked) == 1


def test_packed_speeches(tmp_path):
    path = tmp_path / "moby_roles.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"one": SPEECHES}).encode()))
    assert shakespeare.read_packed(path).texts["one/FRANCISCO"] == " ".join(SPEECHES["FRANCISCO"])
    for damaged in (b"noise", gzip.compress(b"noise"), gzip.compress(b"[1]"), gzip.compress(b'{"a": {"b": 3}}')):
        path.write_bytes(damaged)
        with pytest.raises(DataUnavailable, match="cannot be read"):
            shakespeare.read_packed(path)


def windows(words):
    return [words[i : i + LENGTH] for i in range(len(words) - LENGTH)], list(words[LENGTH:])


def test_leaf_gives_back_its_text_and_its_split(tmp_path):
    words = text(600)
    x, y = windows(words)
    cut = int(0.8 * len(x))
    write_shard(tmp_path, "train", "0", {"A": (x[:cut], y[:cut]), "B": ([], [])})
    write_shard(tmp_path, "test", "0", {"A": (x[cut + 79 :], y[cut + 79 :])})
    roles = shakespeare.read_packed(tmp_path / "train")
    assert roles == Roles({"A": words[: cut + LENGTH]}, {"A": words[cut + 79 :]})
    data = by_role(roles, clients=1, least=1)
    assert (len(data.train.y), len(data.test.y)) == (cut, len(x) - cut - 79)


def test_a_small_sample_of_leaf_is_a_data_set_by_name_too(tmp_path, monkeypatch):
    x, y = windows(text(2200))
    for part, held in (("train", slice(0, 1800)), ("test", slice(1880, None))):
        write_shard(tmp_path / "shakespeare", part, "0", {name: (x[held], y[held]) for name in "AB"})
    monkeypatch.setenv("CORYMB_DATA", str(tmp_path))
    data = load("shakespeare")
    assert data.names == ("A", "B")
    assert "only 2 roles have 2000 characters or more: all are used" in data.notes


def test_leaf_out_of_order(tmp_path):
    x, y = windows(text(200))
    write_shard(tmp_path, "test", "0", {"A": (x, y)})
    write_shard(tmp_path, "train", "0", {"A": (x[::-1], y[::-1])})
    with pytest.raises(InvalidInput, match="in turn, as LEAF has them"):
        shakespeare.read_leaf(tmp_path)
    for shard in "01":
        write_shard(tmp_path, "train", shard, {"A": (x, y)})
    with pytest.raises(InvalidInput, match="'A' is in two shards"):
        shakespeare.read_leaf(tmp_path)


@pytest.mark.paper
@pytest.mark.skipif("CORYMB_DATA" not in os.environ, reason="needs the packed plays under CORYMB_DATA")
def test_roles_of_the_packed_plays():
    texts = shakespeare.read_packed(shakespeare.SHAKESPEARE.packed_here).texts
    assert len(texts) == 1341
    assert len({name.split("/")[0] for name in texts}) == len(shakespeare.SHAKESPEARE.files) == 37
    assert sum(len(words) >= 10_000 for words in texts.values()) == 133
