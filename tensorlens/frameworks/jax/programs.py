"""What compiled functions take besides their arrays while they run, as XLA has planned it."""

from __future__ import annotations

from typing import Any

from tensorlens.frameworks.jax.runtime import clients
from tensorlens.units import format_bytes

_planned: dict[bytes, int] = {}
"""Bytes by a program's fingerprint; to ask takes as long as the program is large."""


def note() -> str | None:
    """Return a line on the program that takes most, of those that have not been forgotten."""
    programs = [each for client in clients() for each in client.live_executables()]
    if not programs:
        return None
    sizes = [_temporary(each) for each in programs]
    most = max(sizes)
    if most <= 0:
        return None
    program = programs[sizes.index(most)]
    places = len(program.local_devices())
    each = f" on each of {places} devices" if places > 1 else ""
    many = f", the most of {len(programs)} compiled functions" if len(programs) > 1 else ""
    return (
        f"while it runs, {_name(program)} takes {format_bytes(most)} besides its arrays{each}{many}"
    )


def _temporary(program: Any) -> int:
    """Return the bytes of a program's buffers that are neither arguments nor results."""
    try:
        key = program.fingerprint
        if key is None or key not in _planned:
            size = int(program.get_compiled_memory_stats().temp_size_in_bytes)
            if key is None:
                return size
            _planned[key] = size
        return _planned[key]
    except (RuntimeError, AttributeError):
        # not every platform tells
        return 0


def _name(program: Any) -> str:
    try:
        return str(program.hlo_modules()[0].name)
    except (RuntimeError, IndexError):
        return "a compiled function"
