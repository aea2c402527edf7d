import json

import pytest

from corymb.data.readers.leaf import users_in
from corymb.settings import InvalidInput


def write_shard(folder, part, name, users):
    """A shard as LEAF writes it, of {user: (x, y)}."""
    (folder / part).mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    sizes = [len(y) for _, y in users.values()]
    shard = {"users": list(users), "num_samples": sizes, "user_data": data}
    (folder / part / f"{name}.json").write_text(json.dumps(shard))


def test_shard_after_shard(tmp_path):
    write_shard(tmp_path, "train", "all_data_1", {"c": ([[3]], [3])})
    write_shard(tmp_path, "train", "all_data_0", {"a": ([[1], [2]], [1, 2]), "b": ([], [])})
    assert list(users_in(tmp_path, "train")) == [("a", [[1], [2]], [1, 2]), ("b", [], []), ("c", [[3]], [3])]


def test_complaints(tmp_path):
    with pytest.raises(InvalidInput, match="train has no json files"):
        list(users_in(tmp_path, "train"))
    write_shard(tmp_path, "train", "uneven", {"a": ([[1]], [1, 2])})
    with pytest.raises(InvalidInput, match="user 'a' does not have one label for each"):
        list(users_in(tmp_path, "train"))
    for text in ("{", "[]", '{"users": []}', '{"user_data": {"a": {"x": []}}}', '{"user_data": 3}'):
        (tmp_path / "train" / "uneven.json").write_text(text)
        with pytest.raises(InvalidInput, match="is not a shard of LEAF"):
            list(users_in(tmp_path, "train"))
