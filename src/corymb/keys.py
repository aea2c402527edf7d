"""Counter-based random keys: draws for a purpose are the same wherever and in whatever order they are made.

A key is an int64 tensor of any shape; a batch of keys is simply a longer one. Everything is elementwise integer
arithmetic that wraps modulo 2**64 (the finaliser of SplitMix64), so that bits, integers and uniforms are the same
under vmap, in a loop, at any place in a batch and on any device. Normals go through `erfinv` and are the same on one
device only. Nothing here, or anywhere in the library, reads a global generator.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

try:
    from torch._C._functorch import peek_interpreter_stack
except ImportError:  # pragma: no cover - private to torch: without it, torch does all the work
    peek_interpreter_stack = None  # type: ignore[assignment]

Key = Tensor


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_FACTORS = np.uint64(_MIX_1 % 2**64), np.uint64(_MIX_2 % 2**64)
_SPREAD_FACTOR, _SPREAD_TERM = np.uint64(_MIX_2 % 2**64), np.uint64(_MIX_1 % 2**64)
_STEP = np.uint64(_GOLDEN % 2**64)
_FIRST_STEPS = np.arange(1, 2**14 + 1, dtype=np.uint64) * _STEP


def _shift(x: Tensor, bits: int) -> Tensor:
    return torch.bitwise_and(x >> bits, 2 ** (64 - bits) - 1)  # torch's >> on int64 is arithmetic: clear the sign bits


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _mix_number(number: int) -> int:
    """`_mix` of a plain integer, which saves a dozen torch calls."""
    x = number % 2**64
    x = (x ^ x >> 30) * _MIX_1 % 2**64
    x = (x ^ x >> 27) * _MIX_2 % 2**64
    return _signed(x ^ x >> 31)


def hash_name(name: str) -> int:
    """A 64-bit hash of a name, the same in every process.

    >>> hash_name("client-0")
    -7512662960991081707
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def hash_names(names: Sequence[str]) -> Tensor:
    """The hash of each name, without an intermediate list."""
    return torch.from_numpy(np.fromiter(map(hash_name, names), np.int64, len(names)))


def root(seed: int) -> Key:
    """The key everything else in a run is folded from."""
    return key_of(seed)


def key_of(seed: int, *data: int | str) -> Key:
    """`fold(root(seed), *data)` for plain integers and names, which saves a hundred torch calls.

    >>> bool(key_of(3, "run", 7) == fold(root(3), "run", 7))
    True
    """
    number = _mix_number(seed + _GOLDEN)
    for item in data:
        number = fold_number(number, item)
    return torch.tensor(number)


def fold(key: Key, *data: int | str | Tensor) -> Key:
    """The key folded with each of `data` in turn; tensors broadcast against the key.

    >>> a = fold(root(0), torch.arange(3))
    >>> bool(a[1] == fold(root(0), 1))
    True
    """
    for item in data:
        key = _mix(_mix(key + _GOLDEN) ^ (_spread(item) if isinstance(item, Tensor) else _spread_number(item)))
    return key


def fold_number(key: int, item: int | str) -> int:
    """`fold` for a key that is a plain integer.

    >>> fold_number(int(root(0)), 1) == int(fold(root(0), 1))
    True
    """
    return _mix_number(_mix_number(key + _GOLDEN) ^ _spread_number(item))


class KeyRing:
    """Fast `fold(key, numbers)` on the CPU for fixed numbers, such as clients' hashes: a tenth of the cost.

    It is done in place by numpy, which has less overhead per call, and keeps nothing besides the numbers themselves.

    >>> ring = KeyRing(torch.arange(3))
    >>> keys = ring.keys(5, torch.tensor([0, 2]), ["batches"])
    >>> wanted = fold(torch.tensor(5), torch.tensor([0, 2]))
    >>> bool((keys[:, 0] == wanted).all()), bool((keys[:, 1] == fold(wanted, "batches")).all())
    (True, True)
    """

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = _unsigned(numbers)

    def keys(self, key: int, which: Tensor, purposes: Sequence[str] = ()) -> Tensor:
        """The keys of some of the numbers, followed by these folded with each purpose: n, 1 + len(purposes)."""
        own = _spread_unsigned(self._numbers[which.numpy()])
        own ^= np.uint64(_mix_number(key + _GOLDEN) % 2**64)
        own = _mix_in_place(own)
        keys = np.empty((len(own), 1 + len(purposes)), np.uint64)
        keys[:, 0] = own
        if purposes:
            mixed = _mix_in_place(own + _STEP)
            for place, purpose in enumerate(purposes, 1):
                keys[:, place] = _mix_in_place(mixed ^ np.uint64(_spread_number(purpose) % 2**64))
        return torch.from_numpy(keys.view(np.int64))


def _unsigned(keys: Tensor) -> npt.NDArray[np.uint64]:
    return keys.numpy().view(np.uint64)


def _mix_in_place(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`_mix` that overwrites its argument."""
    x ^= x >> _SHIFTS[0]
    x *= _FACTORS[0]
    x ^= x >> _SHIFTS[1]
    x *= _FACTORS[1]
    x ^= x >> _SHIFTS[2]
    return x


def _spread(item: Tensor) -> Tensor:
    return _mix(item.to(torch.int64) * _MIX_2 + _MIX_1)


def _spread_unsigned(items: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`_spread` in a single new array and one more for the moment, as there may be a million clients."""
    spread = items * _SPREAD_FACTOR
    spread += _SPREAD_TERM
    return _mix_in_place(spread)


@lru_cache(2**10)  # the same purposes in every round
def _spread_number(item: int | str) -> int:
    return _mix_number((hash_name(item) if isinstance(item, str) else item) * _MIX_2 + _MIX_1)


def bits(key: Key, shape: tuple[int, ...] = ()) -> Tensor:
    """64 random bits for every element of `shape`; the shape of a batch of keys comes first."""
    places = torch.arange(_size(shape), device=key.device).reshape(shape)
    return fold(key.reshape(key.shape + (1,) * len(shape)), places)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def uniform(key: Key, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform in [0, 1), from as many bits as `dtype` holds (24 in float32), exactly the same on every device.

    >>> uniform(root(0), (2,)).dtype
    torch.float32
    """
    exact = 1 - round(math.log2(torch.finfo(dtype).eps))
    wide = torch.promote_types(dtype, torch.float32)  # float16 cannot hold the integers that are scaled
    return (_shift(bits(key, shape), 64 - exact).to(wide) * 2.0**-exact).to(dtype)


def happens(key: Key, probability: float, shape: tuple[int, ...] = ()) -> Tensor:
    """True with this probability for every element of `shape`; the shape of a batch of keys comes first.

    A cheap way to many draws: a SplitMix64 stream seeded by the key, with each word split into two halves of 32 bits.

    >>> happens(root(0), 0.5, (2, 4)).tolist()
    [[True, False, False, False], [False, True, False, False]]
    """
    size, limit = _size(shape), round(probability * 2**32)
    if not numpy_takes(key):
        places = torch.arange(1, (size + 1) // 2 + 1, device=key.device)
        words = _mix(key.unsqueeze(-1) + places * _GOLDEN)
        halves = torch.stack([words, words >> 32], -1).flatten(-2)[..., :size] & (2**32 - 1)
        return (halves < limit).reshape(*key.shape, *shape)
    if has_torch_function_unary(key):
        drawn: Tensor = handle_torch_function(happens, (key,), key, probability, shape)
        return drawn
    stream = _mix_in_place(_unsigned(key)[..., None] + _steps((size + 1) // 2))
    halves_of_words = stream.astype("<u8", copy=False).view("<u4")[..., :size]
    return torch.from_numpy(halves_of_words < limit).reshape(*key.shape, *shape)


def _steps(count: int) -> npt.NDArray[np.uint64]:
    """What a SplitMix64 stream adds to its key, step by step."""
    few = count <= len(_FIRST_STEPS)
    return _FIRST_STEPS[:count] if few else np.arange(1, count + 1, dtype=np.uint64) * _STEP


def fold_each(key: Key, item: int) -> Key:
    """`fold` of several keys with one number, faster.

    >>> keys = fold(root(0), torch.arange(3))
    >>> bool((fold_each(keys, 1) == fold(keys, 1)).all())
    True
    """
    if not (key.dim() and numpy_takes(key)):
        return fold(key, item)
    if has_torch_function_unary(key):
        folded: Tensor = handle_torch_function(fold_each, (key,), key, item)
        return folded
    mixed = _mix_in_place(_unsigned(key) + _STEP)
    mixed ^= np.uint64(_spread_number(item) % 2**64)
    return torch.from_numpy(_mix_in_place(mixed).view(np.int64))


def fold_rows(key: Key, rows: Tensor) -> Key:
    """`fold` of one key with the numbers of rows, faster.

    >>> bool((fold_rows(root(0), torch.arange(3)) == fold(root(0), torch.arange(3))).all())
    True
    """
    if not (numpy_takes(key) and numpy_takes(rows)):
        return fold(key, rows)
    if has_torch_function_unary(key):
        folded: Tensor = handle_torch_function(fold_rows, (key, rows), key, rows)
        return folded
    spread = _spread_unsigned(_unsigned(rows))
    spread ^= np.uint64(_mix_number(int(key) + _GOLDEN) % 2**64)
    return torch.from_numpy(_mix_in_place(spread).view(np.int64))


BY_NUMPY = happens, fold_each, fold_rows
"""Functions that compute outside torch, where that is faster. Modes that override functions of torch see them too."""


def numpy_takes(tensor: Tensor) -> bool:
    """Whether a tensor is plain memory of the CPU: not batched by vmap, for example."""
    plain = type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.dtype == torch.int64
    return plain and no_transform_active()


def no_transform_active() -> bool:
    """Whether no `torch.func` transform, such as vmap, is active; False if this torch cannot tell."""
    return peek_interpreter_stack is not None and peek_interpreter_stack() is None


def integers(key: Key, high: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Integers in [0, high), from 63 bits: the bias is below high / 2**63."""
    return _shift(bits(key, shape), 1) % high


def normal(key: Key, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normals, by the inverse of the cumulative distribution function."""
    centred = 2 * uniform(key, shape, torch.float64) + (2.0**-53 - 1)
    return (torch.erfinv(centred) * 2**0.5).to(dtype)


def permutation(key: Key, length: int) -> Tensor:
    """A random permutation of `range(length)`: the argsort of random bits."""
    return bits(key, (length,)).argsort(dim=-1, stable=True)
