"""The buffers of arrays: where they lie and how large they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.jax.runtime import clients, is_in_callback, memory_name

_GONE = (RuntimeError, ValueError)
"""What JAX raises for an array that was deleted or donated, or whose computation failed."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One array on one device. Sizes are bytes."""

    array: int
    """Number of the array among those that were read."""
    shard: int | None
    """Its place among ``addressable_shards``; None for an array that is on one device alone."""
    device: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    address: int
    """Of the buffer's first byte; 0 where it is not known."""
    buffer_nbytes: int
    """The whole buffer, which some devices pad and others pack."""
    offset: int = 0


class Reader:
    """Reads arrays, of which it keeps nothing.

    It waits until an array is computed, which is when its buffer is known for certain; in a
    callback, for which the computation itself waits, it does not.
    """

    def __init__(self) -> None:
        self._waits = not is_in_callback()
        self._places: dict[int, tuple[Any, str]] = {}
        self.unread = 0
        """How many arrays could not be read."""

    def read(self, arrays: Sequence[Any]) -> list[Fact]:
        """Return a fact for each array, and for each device of one that is on several."""
        facts: list[Fact] = []
        for number, array in enumerate(arrays):
            try:
                if not array.is_deleted():
                    facts += self._read(number, array)
            except _GONE:
                self.unread += not _is_deleted(array)
        return facts

    def _read(self, number: int, array: Any) -> list[Fact]:
        shards = parts_of(array)
        several = len(array.sharding.device_set) > 1
        return [
            Fact(
                array=number,
                shard=place if several else None,
                device=self._place(shard),
                dtype=str(shard.dtype),
                shape=tuple(shard.shape),
                nbytes=int(shard.nbytes),
                address=self._address(shard),
                buffer_nbytes=int(shard.on_device_size_in_bytes()),
            )
            for place, shard in enumerate(shards)
        ]

    def _address(self, shard: Any) -> int:
        if not shard.size:
            # what has no bytes may seem to lie where something else does
            return 0
        if not shard.is_ready():
            if not self._waits:
                return 0
            # unlike the question for the address, this lets other threads run
            shard.block_until_ready()
        return int(shard.unsafe_buffer_pointer())

    def _place(self, shard: Any) -> str:
        sharding = shard.sharding
        known = self._places.get(id(sharding))
        if known is None:
            (device,) = sharding.device_set
            known = self._places[id(sharding)] = sharding, memory_name(device, sharding.memory_kind)
        return known[1]


def parts_of(array: Any) -> list[Any]:
    """Return what an array has on each device of this process, as an array each.

    An array keeps these once it is asked for them: a copy that shares its buffers is asked.
    """
    if len(array.sharding.device_set) == 1:
        return [array]
    parts: list[Any] = array.clone()._arrays
    return parts


def host_bytes() -> int:
    """Return the bytes of all buffers that arrays on the CPU have now, each once; waits for none.

    What accelerators keep in the host's memory is not in it.
    """
    sizes: dict[int, int] = {}
    for client in clients():
        if client.platform == "cpu":
            for array in client.live_arrays():
                try:
                    key, nbytes = _sized(array)
                    sizes[key] = max(nbytes, sizes.get(key, 0))
                except _GONE:
                    sizes.update(_sharded(array))
    return sum(sizes.values())


def _sized(array: Any) -> tuple[int, int]:
    """Return what tells an array's buffer from others, and its bytes."""
    # where a buffer will lie is known for certain when it is there
    key = array.unsafe_buffer_pointer() if array.is_ready() else -id(array)
    return key, array.on_device_size_in_bytes()


def _sharded(array: Any) -> Iterator[tuple[int, int]]:
    try:
        for shard in parts_of(array):
            yield _sized(shard)
    except _GONE:
        # deleted meanwhile
        return


def _is_deleted(array: Any) -> bool:
    try:
        return bool(array.is_deleted())
    except _GONE:
        return True
