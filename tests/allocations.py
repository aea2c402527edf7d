"""What is allocated: the large tensors that operations create, and the bytes of the tensors that are alive."""

import gc
import warnings
from contextlib import suppress

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargeTensors(TorchDispatchMode):
    """Records the operations that create a tensor of at least so many bytes: their names and the tensors' shapes."""

    def __init__(self, least: int):
        super().__init__()
        self.least, self.found = least, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {where_of(value) for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)}
        out = func(*args, **(kwargs or {}))
        for made in tree_leaves(out):
            if (
                isinstance(made, Tensor)
                and where_of(made) not in given
                and made.untyped_storage().nbytes() >= self.least
            ):
                self.found.append((func.overloadpacket.__name__, tuple(made.shape), made.dtype))
        return out


def where_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors_alive() -> dict[int, int]:
    """The bytes of the memory blocks of all tensors, by address."""
    gc.collect()
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # looking at every object touches deprecated ones
        for one in gc.get_objects():
            if type(one) is torch.Tensor:
                with suppress(NotImplementedError, RuntimeError):  # a sparse one, kept by another test, has no storage
                    storage = one.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    return found
