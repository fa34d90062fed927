"""Less memory than there is: on the CPU by ``setrlimit``, on CUDA by torch's own allocator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from tensorlens.frameworks.trials.memory import host_limited


@contextlib.contextmanager
def limited(nbytes: int | None) -> Iterator[None]:
    """Let the program have so many bytes from here on; None: as many as there are.

    On CUDA they are what the device would have in all: the caching allocator may reserve what is
    left of them beside what is taken before the program begins. Else the process may map so many
    bytes more.

    Raises:
        CannotApply: this system sets no such limit.
    """
    if nbytes is None:
        yield
        return
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            torch.zeros(1, device=f"cuda:{number}")
            free, total = torch.cuda.mem_get_info(number)
            taken = total - free - torch.cuda.memory_reserved(number)
            share = max(nbytes - taken, 0) / total
            torch.cuda.set_per_process_memory_fraction(min(share, 1.0), number)
        yield
        return
    with host_limited(nbytes):
        yield
