"""Reads ``PYTORCH_CUDA_ALLOC_CONF`` as torch does.

From ``c10/core/AllocatorConfig.h`` and ``.cpp`` and ``c10/cuda/CUDAAllocatorConfig.h`` of torch
2.13. Sizes are bytes; torch's ``mb`` are units of 2**20.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tensorlens.errors import UsageError
from tensorlens.records.torch_files.sizes import Rules
from tensorlens.units import rounded_up

MIB = 1 << 20
LARGE_REQUEST = 10 << 20
"""Requests of so many bytes and more get a segment of their own size (``kMinLargeAlloc``)."""
LARGE_SEGMENT = 20 << 20
"""Bytes of a segment for requests above 1 MiB and below 10 MiB; and a request that is too large for
its block to be split takes one that is less than so much larger."""
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables that hold the settings; the first that is there counts."""

_INTERVALS = 16
_OPTION = re.compile(r"([^,:\[\]]+):(\[[^\]]*\]|[^,:\[\]]+)(?:,|$)")
_NO_EFFECT = {
    *("garbage_collection_threshold", "throw_on_cudamalloc_oom"),
    *("release_lock_on_cudamalloc", "release_lock_on_hipmalloc"),
    *("graph_capture_record_stream_reuse", "pinned_use_background_threads"),
    *("pinned_use_cuda_host_register", "pinned_use_hip_host_register", "pinned_free_catch_all"),
    *("pinned_num_register_threads", "pinned_reserve_segment_size_mb"),
    *("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"),
}
"""Options that change no size on a device. The threshold acts where a process may take a share of
the card, which is not simulated."""
_UNSIMULATED = ("large_segment_size_mb", "max_non_split_rounding_mb")
_KNOWN = {
    *("expandable_segments", "max_split_size_mb", "roundup_power2_divisions", "backend"),
    *("per_process_memory_fraction", *_UNSIMULATED, *_NO_EFFECT),
}


def settings_text(environment: Mapping[str, str]) -> str:
    """Return the settings that an environment such as ``os.environ`` has, as they are written."""
    return next((environment[name] for name in VARIABLES if name in environment), "")


class Settings(Rules):
    """How the allocator is set up."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Return the settings that a text such as ``max_split_size_mb:128`` makes.

        What has no effect on a device's memory is passed over.

        Raises:
            UsageError: an option is unknown or its value malformed, or the text asks for an
                allocator other than torch's own.
        """
        settings = cls()
        for name, value in _options(text):
            settings = settings._with(name, value)
        return settings

    def _with(self, name: str, value: str) -> Settings:
        if name == "expandable_segments":
            if value not in ("True", "False"):
                raise _malformed(name, value, "True or False")
            return replace(self, expandable_segments=value == "True")
        if name == "max_split_size_mb":
            if not value.isdecimal() or int(value) * MIB < LARGE_SEGMENT:
                least = LARGE_SEGMENT // MIB
                raise _malformed(name, value, f"a whole number, at least {least}")
            return replace(self, max_split_size=int(value) * MIB)
        if name in _UNSIMULATED:
            raise UsageError(f"{name} cannot be simulated: leave it out")
        if name == "roundup_power2_divisions":
            if value.startswith("["):
                raise UsageError(
                    f"{name}:{value} cannot be simulated: give one number for all sizes"
                )
            return replace(self, roundup_power2_divisions=(_power(name, value),) * _INTERVALS)
        if name == "backend" and value != "native":
            raise UsageError(f"backend:{value} cannot be simulated: only torch's own allocator can")
        if name == "per_process_memory_fraction" and value not in ("1", "1.0"):
            raise UsageError(f"{name} cannot be simulated: give the bytes as the capacity")
        return self

    def segment_size(self, size: int) -> int:
        """Return the bytes of a new segment for so many rounded bytes (``get_allocation_size``)."""
        if size <= MIB:
            return 2 * MIB
        if size < LARGE_REQUEST:
            return LARGE_SEGMENT
        return rounded_up(size, 2 * MIB)


def _options(text: str) -> Iterator[tuple[str, str]]:
    text, place = "".join(text.split()), 0
    while place < len(text):
        match = _OPTION.match(text, place)
        if match is None:
            raise UsageError(
                f"PYTORCH_CUDA_ALLOC_CONF: {text[place:]!r} is no list of NAME:VALUE with commas"
            )
        name, value = match.groups()
        if name not in _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            raise UsageError(f"{name!r} is no option of PYTORCH_CUDA_ALLOC_CONF: known are {known}")
        yield name, value
        place = match.end()


def _malformed(name: str, value: str, wanted: str) -> UsageError:
    return UsageError(f"PYTORCH_CUDA_ALLOC_CONF: {name}:{value}: {wanted} is wanted")


def _power(name: str, value: str) -> int:
    if not value.isdecimal() or int(value).bit_count() != 1:
        raise _malformed(name, value, "a power of two")
    return int(value)
