"""Reads ``PYTORCH_CUDA_ALLOC_CONF`` as torch does.

From ``c10/core/AllocatorConfig.h`` and ``.cpp`` and ``c10/cuda/CUDAAllocatorConfig.h`` of torch
2.13. Sizes are bytes; torch's ``mb`` are units of 2**20.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.records.torch_snapshots.sizes import Rules

MIB = 1 << 20
LARGE_REQUEST = 10 << 20
"""Requests of so many bytes and more get a segment of their own size (``kMinLargeAlloc``)."""
LARGE_SEGMENT = 20 << 20
"""Bytes of a segment for requests above 1 MiB and below 10 MiB, if nothing else is set."""
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables that hold the settings; the first that is there counts."""

_INTERVALS = 16
_LIMIT = 1 << 64
_WHOLE = re.compile(r"[+-]?\d+")
_FRACTION = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_PUNCTUATION = re.compile(r"([,:\[\]])")


def settings_text(environment: Mapping[str, str]) -> str:
    """Return the settings that an environment such as ``os.environ`` has, as they are written."""
    return next((environment[name] for name in VARIABLES if name in environment), "")


@dataclass(frozen=True, slots=True)
class Settings:
    """How the allocator is set up."""

    expandable_segments: bool = False
    max_split_size: int | None = None
    """Blocks of at least so many bytes are never split, nor given to smaller requests."""
    max_non_split_rounding: int = LARGE_SEGMENT
    """A request for at least ``max_split_size`` takes a block that is less than so much larger."""
    roundup_power2_divisions: Sequence[int] = ()
    """Parts between powers of two that requests are rounded up to: sixteen numbers, for requests
    below 2 MiB, below 4 MiB and so on, the last for all from 32 GiB on; empty for none."""
    large_segment_size: int = LARGE_SEGMENT

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Return the settings that a text such as ``max_split_size_mb:128`` makes.

        What has no effect on a device's memory is checked and passed over, and so are
        ``throw_on_cudamalloc_oom``, which changes how a request fails, and
        ``garbage_collection_threshold``, which acts where a process may take a share of the card.

        Raises:
            UsageError: an option is unknown or its value malformed, so that torch would refuse it,
                or the text asks for an allocator other than torch's own.
        """
        options = list(_options(text))
        settings = cls()
        # torch looks for this one first, since others are checked against it
        for name, value in options:
            if name == "large_segment_size_mb":
                size = _large_segment(name, value)
                settings = replace(settings, large_segment_size=size, max_non_split_rounding=size)
        for name, value in options:
            read = _READERS.get(name)
            if read is None:
                raise UsageError(
                    f"{name!r} is no option of PYTORCH_CUDA_ALLOC_CONF: known are "
                    + ", ".join(sorted(_READERS))
                )
            settings = replace(settings, **read(settings, name, value))
        return settings

    @property
    def rules(self) -> Rules:
        """How requests are rounded and blocks split."""
        return Rules(
            divisions=tuple(self.roundup_power2_divisions),
            max_split=self.max_split_size,
            expandable=self.expandable_segments,
        )

    def segment_size(self, size: int) -> int:
        """Return the bytes of a new segment for so many rounded bytes (``get_allocation_size``)."""
        if size <= MIB:
            return 2 * MIB
        if size < LARGE_REQUEST:
            return self.large_segment_size
        return -(-size // (2 * MIB)) * 2 * MIB


_Value = Sequence[str]
"""The tokens of a value: one, or those of a list with its brackets."""
_Read = Callable[[Settings, str, _Value], dict[str, Any]]


def _options(text: str) -> Iterator[tuple[str, _Value]]:
    tokens = [part for part in _PUNCTUATION.split("".join(text.split())) if part]
    place = 0
    while place < len(tokens):
        name = tokens[place]
        if tokens[place + 1 : place + 2] != [":"] or place + 2 >= len(tokens):
            raise UsageError(f"PYTORCH_CUDA_ALLOC_CONF: {name!r} has no value (write {name}:VALUE)")
        end = place + 3
        if tokens[place + 2] == "[":
            if "]" not in tokens[end:]:
                raise UsageError(f"PYTORCH_CUDA_ALLOC_CONF: the list of {name!r} has no end")
            end = tokens.index("]", end) + 1
        yield name, tokens[place + 2 : end]
        if end < len(tokens) and tokens[end] != ",":
            raise UsageError(f"PYTORCH_CUDA_ALLOC_CONF: {tokens[end]!r} where a comma should be")
        place = end + 1


def _single(name: str, value: _Value) -> str:
    if len(value) != 1 or _PUNCTUATION.fullmatch(value[0]):
        raise _malformed(name, value, "one value")
    return value[0]


def _malformed(name: str, value: _Value, wanted: str) -> UsageError:
    return UsageError(f"PYTORCH_CUDA_ALLOC_CONF: {name}:{''.join(value)}: {wanted} is wanted")


def _whole(name: str, value: _Value) -> int:
    # as std::stoull: what follows the digits is passed over, below 0 counts from 2**64
    match = _WHOLE.match(_single(name, value))
    if match is None or abs(int(match[0])) >= _LIMIT:
        raise _malformed(name, value, "a whole number")
    return int(match[0]) % _LIMIT


def _real(name: str, value: _Value) -> float:
    match = _FRACTION.match(_single(name, value))
    if match is None:
        raise _malformed(name, value, "a number")
    return float(match[0])


def _mib(count: int) -> int:
    return min(count, (_LIMIT - 1) // MIB) * MIB


def _large_segment(name: str, value: _Value) -> int:
    count = _whole(name, value)
    if count <= LARGE_REQUEST // MIB:
        raise _malformed(name, value, "more than 10")
    return _mib(count)


def _at_least_a_segment(settings: Settings, name: str, value: _Value) -> int:
    count, least = _whole(name, value), settings.large_segment_size // MIB
    if count < least:
        raise _malformed(name, value, f"at least {least}")
    return _mib(count)


def _max_split(settings: Settings, name: str, value: _Value) -> dict[str, Any]:
    return {"max_split_size": _at_least_a_segment(settings, name, value)}


def _max_rounding(settings: Settings, name: str, value: _Value) -> dict[str, Any]:
    return {"max_non_split_rounding": _at_least_a_segment(settings, name, value)}


def _threshold(settings: Settings, name: str, value: _Value) -> dict[str, Any]:
    share = _real(name, value)
    if not 0 < share < 1:
        raise _malformed(name, value, "a number between 0 and 1")
    return {}


def _share(settings: Settings, name: str, value: _Value) -> dict[str, Any]:
    share = _real(name, value)
    if not 0 <= share <= 1:
        raise _malformed(name, value, "a number from 0 to 1")
    if share < 1:
        raise UsageError(f"{name} cannot be simulated: give the bytes as the capacity")
    return {}


def _truth(name: str, value: _Value) -> bool:
    told = _single(name, value)
    if told not in ("True", "False"):
        raise _malformed(name, value, "True or False")
    return told == "True"


def _expandable(settings: Settings, name: str, value: _Value) -> dict[str, Any]:
    return {"expandable_segments": _truth(name, value)}


def _divisions(settings: Settings, name: str, value: _Value) -> dict[str, Any]:
    if value[0] == "[":
        made = _listed_divisions(name, value)
    else:
        made = [_power(name, value, _single(name, value))] * _INTERVALS
    return {"roundup_power2_divisions": tuple(made) if any(made) else ()}


def _listed_divisions(name: str, value: _Value) -> list[int]:
    made = [0] * _INTERVALS
    last, first = 0, True
    body = value[1:-1]
    for place in range(0, len(body), 4):
        entry = [*body[place : place + 4], ","][:4]
        if len(entry) < 4 or entry[1] != ":" or entry[3] != ",":
            raise _malformed(name, value, "a list such as [256:1,512:2,>:4]")
        parts = 0 if _whole(name, entry[2:3]) == 0 else _power(name, value, entry[2])
        if entry[0] == ">":
            made[last + 1 :] = [parts] * (_INTERVALS - last - 1)
            continue
        last = min(_power(name, value, entry[0]).bit_length() - 1, _INTERVALS - 1)
        if first:
            made[:last] = [parts] * last
            first = False
        made[last] = parts
    return made


def _power(name: str, value: _Value, token: str) -> int:
    count = _whole(name, [token])
    if count.bit_count() != 1:
        raise _malformed(name, value, "powers of two")
    return count


def _backend(settings: Settings, name: str, value: _Value) -> dict[str, Any]:
    told = _single(name, value)
    if told == "cudaMallocAsync":
        raise UsageError("backend:cudaMallocAsync cannot be simulated: the driver decides there")
    if told != "native":
        raise _malformed(name, value, "native or cudaMallocAsync")
    return {}


def _of_no_effect(settings: Settings, name: str, value: _Value) -> dict[str, Any]:
    _truth(name, value)
    return {}


def _of_the_host(settings: Settings, name: str, value: _Value) -> dict[str, Any]:
    _whole(name, value)
    return {}


def _large(settings: Settings, name: str, value: _Value) -> dict[str, Any]:
    return {}


_READERS: Mapping[str, _Read] = {
    "expandable_segments": _expandable,
    "max_split_size_mb": _max_split,
    "max_non_split_rounding_mb": _max_rounding,
    "roundup_power2_divisions": _divisions,
    "garbage_collection_threshold": _threshold,
    "large_segment_size_mb": _large,
    "per_process_memory_fraction": _share,
    "backend": _backend,
    "release_lock_on_cudamalloc": _of_no_effect,
    "release_lock_on_hipmalloc": _of_no_effect,
    "throw_on_cudamalloc_oom": _of_no_effect,
    "graph_capture_record_stream_reuse": _of_no_effect,
    "pinned_use_background_threads": _of_no_effect,
    "pinned_use_cuda_host_register": _of_no_effect,
    "pinned_use_hip_host_register": _of_no_effect,
    "pinned_free_catch_all": _of_no_effect,
    "pinned_num_register_threads": _of_the_host,
    "pinned_reserve_segment_size_mb": _of_the_host,
    "pinned_max_round_threshold_mb": _of_the_host,
    "pinned_max_cached_size_mb": _of_the_host,
}
