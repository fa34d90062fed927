"""The words of an accelerator's ledger: what each figure is on this backend."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.records.ledger import Term

_BY_BLOCK = {
    "allocated": "handed out by the caching allocator: requests rounded up to 512 B, and what is "
    "left of a large block where it is not split (up to 1 MiB)",
    "named": "of it, the blocks that known tensors lie in, each once",
    "unnamed": "of it, the blocks that no known tensor lies in: workspaces of cuBLAS and other "
    "libraries, buffers of extensions, tensors that only native code holds",
    "reserved": "segments that the caching allocator holds from the driver",
    "cached": "of it, what is not handed out: kept for later requests",
}
_BY_STATISTICS = {
    "allocated": "handed out by the allocator, as its statistics tell",
    "named": "of it, the bytes of known tensors' storages, without the allocator's rounding",
    "unnamed": "of it, the rest: the allocator's rounding, workspaces of libraries, tensors that "
    "only native code holds",
    "reserved": "what the allocator holds from the driver, as its statistics tell",
    "cached": "of it, what is not handed out: kept for later requests",
}
_DRIVER = {
    "other": "in use on the device beside what is reserved here: contexts, kernels and libraries' "
    "own memory, and other processes",
    "driver_used": "in use on the device by all processes, as the driver tells: total less free",
    "driver_total": "what the device has, as the driver tells",
}
_METAL = {
    "other": "what Metal has given this process beside what is reserved here: MPSGraph and kernels",
    "driver_used": "what Metal has given this process; it does not tell of others",
    "driver_total": "the most that Metal recommends to use",
}


def explanations(kind: str, no_blocks: str | None) -> dict[str, str]:
    """Return one line for each figure.

    Args:
        kind: the backend.
        no_blocks: why the allocator's blocks are not known; None where they are.
    """
    found = {**_BY_BLOCK, **(_METAL if kind == "mps" else _DRIVER)}
    if no_blocks is not None:
        found |= _BY_STATISTICS
        found["unnamed"] += f"; no block is listed: {no_blocks}"
    return found


def outside_term(nbytes: int) -> Term:
    """Return the part of ``other`` that known tensors lie in."""
    return Term(
        *("other", "outside", "tensors outside of the allocator"),
        nbytes,
        "storages that lie in none of the allocator's segments: shared by another process "
        "(CUDA IPC) or made by another library, or freed while this was read",
    )


def process_terms(context: int | None, other: int) -> Iterator[Term]:
    """Give the two parts of ``other``: this process's and everything else.

    Args:
        context: bytes of this process beside what is reserved; None where nobody tells.
        other: bytes of both.
    """
    yield Term(
        *("other", "context", "context and libraries of this process"),
        context,
        "what NVML (on ROCm amdsmi) tells of this process, less what is reserved: the context, "
        "loaded kernels, memory of libraries that ask the driver themselves",
    )
    yield Term(
        *("other", "other_processes", "other processes and the driver"),
        None if context is None else other - context,
        "the rest of other",
    )
