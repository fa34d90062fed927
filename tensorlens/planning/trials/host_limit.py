"""The limit of host memory that a job runs under."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from tensorlens.frameworks.host.process_memory import heap_now, status_sizes
from tensorlens.planning.trials.jobs import CannotApply


@contextlib.contextmanager
def host_limited(nbytes: int) -> Iterator[None]:
    """Limit the process to ``nbytes`` beyond what it uses now.

    It sets ``RLIMIT_DATA``, which counts private mappings on Linux 4.7 and later. Free memory of
    the C library is returned first, or counts as part of these bytes.

    Raises:
        CannotApply: this system sets no such limit.
    """
    try:
        import resource

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        mapped = status_sizes().get("VmData")
    except ImportError:
        mapped = None
    if mapped is None:
        raise CannotApply("this system cannot limit a process's memory: it needs Linux's /proc")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    heap = heap_now()
    wanted = mapped + nbytes - (0 if heap is None else heap[1])
    hard = before[1]
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
