import pytest

from corymb.core.client import Memory, on_client


def test_a_client_function_takes_a_client_first():
    with pytest.raises(TypeError, match=r"first parameter of a client function must be `client`, it is 'models'"):
        on_client(lambda models: models)
    with pytest.raises(TypeError, match=r"must be `client`, it has none"):
        on_client(lambda: 1)


def test_memory_accepts_only_tensors_and_numbers():
    memory = Memory({}, lengths={"train": 3, "test": 2})
    with pytest.raises(TypeError, match=r"^memory slot 'x': 'text' cannot be a tensor: wanted tensors or numbers"):
        memory.set("x", "text")
    memory.set("x", {"of": [1, 2.5]})
    assert float(memory.get("x")["of"][1]) == 2.5
