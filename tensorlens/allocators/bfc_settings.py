"""What TensorFlow's BFC allocator is made with, on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorlens.errors import UsageError

_MIB = 1 << 20
_CPU_LIMIT_MIB = 1 << 16
_KEPT_MIB = ((6, 500), (7, 1050), (8, 1536))
"""Left to the system: compute capability's first number, up to it so much."""
_KEPT_ABOVE_MIB, _KEPT_SMALL_MIB, _SMALL_CARD = 1800, 225, 2 << 30


@dataclass(frozen=True, slots=True)
class BFCSettings:
    """What ``BFCAllocator::Options`` and its memory limit say.

    Raises:
        UsageError: there is no limit and something that is counted from it.
    """

    limit: int | None = None
    """Bytes that all regions together may have; None: no end, which TensorFlow never has and an
    estimate for an unknown card needs."""
    allow_growth: bool = True
    """Regions are taken as they are needed; else one of the whole limit at the first request."""
    garbage_collection: bool = False
    """Regions without a chunk in use go back before a request fails."""
    fragmentation_fraction: float = 0.0
    """A chunk may exceed its request by less than this share of the limit; 0: by less than 128
    MiB."""

    def __post_init__(self) -> None:
        if self.limit is None and (not self.allow_growth or self.fragmentation_fraction > 0):
            raise UsageError("a BFC allocator without a limit has to grow, in steps of its own")
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"a BFC allocator cannot have {self.limit} bytes")

    @property
    def max_spare(self) -> int:
        """Bytes beyond the request from which on a chunk is split in any case."""
        if self.limit is not None and self.fragmentation_fraction > 0:
            return int(self.fragmentation_fraction * self.limit)
        return 128 * _MIB

    @classmethod
    def on_cpu(cls, environment: Mapping[str, str]) -> BFCSettings:
        """Return those of the CPU's allocator, where ``TF_CPU_ALLOCATOR_USE_BFC`` switches it on.

        They are those of ``tensorflow/core/common_runtime/process_state.cc``: growth, up to
        ``TF_CPU_BFC_MEM_LIMIT_IN_MB`` (MiB, by default 64 GiB).
        """
        try:
            limit = int(environment.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", _CPU_LIMIT_MIB))
        except ValueError:
            limit = _CPU_LIMIT_MIB
        return cls(limit * _MIB)

    @classmethod
    def on_gpu(
        cls,
        limit: int | None,
        environment: Mapping[str, str],
        *,
        allow_growth: bool = False,
        fragmentation_fraction: float = 0.0,
    ) -> BFCSettings:
        """Return those of a GPU's allocator (``gpu/gpu_bfc_allocator.cc``).

        Args:
            limit: bytes; see :func:`gpu_limit`.
            environment: ``TF_FORCE_GPU_ALLOW_GROWTH`` goes before ``allow_growth``, and
                ``TF_ENABLE_GPU_GARBAGE_COLLECTION`` switches garbage collection off where it is
                ``false``; both are case-sensitive.
            allow_growth: as in ``tf.config.experimental.set_memory_growth``.
            fragmentation_fraction: the option ``internal_fragmentation_fraction``.

        Raises:
            UsageError: there is no limit, and no growth.
        """
        forced = environment.get("TF_FORCE_GPU_ALLOW_GROWTH")
        return cls(
            limit,
            allow_growth=forced == "true" if forced in ("true", "false") else allow_growth,
            garbage_collection=environment.get("TF_ENABLE_GPU_GARBAGE_COLLECTION") != "false",
            fragmentation_fraction=fragmentation_fraction,
        )


def gpu_limit(
    available: int,
    capability: int,
    *,
    total: int | None = None,
    fraction: float = 0.0,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Return the bytes that TensorFlow's allocator may take of a GPU.

    The rules are those of ``SingleVirtualDeviceMemoryLimit`` in ``gpu/gpu_device.cc``; the CUDA
    context has its memory already.

    Args:
        available: bytes that the driver has left.
        capability: first number of the compute capability: 7 of 7.5.
        total: bytes of memory that the card has, for ``fraction``; by default what is available.
        fraction: the option ``per_process_gpu_memory_fraction``; 0: not set.
        environment: where ``TF_DEVICE_MIN_SYS_MEMORY_IN_MB`` may say what is left to the system.
    """
    said = (environment or {}).get("TF_DEVICE_MIN_SYS_MEMORY_IN_MB", "")
    if said.isdigit() and int(said) * _MIB <= available:
        return available - int(said) * _MIB
    if fraction > 0:
        return int((available if total is None else total) * fraction)
    kept = next((mib for major, mib in _KEPT_MIB if capability <= major), _KEPT_ABOVE_MIB)
    if available < _SMALL_CARD:
        kept = _KEPT_SMALL_MIB
    return available - kept * _MIB if kept * _MIB < available else available
