"""What compiled functions need while they run, as XLA has planned it: no counter sees that.

The plan has the buffers that XLA's own code computes with. What a kernel of a library takes for
itself is not in it: on the CPU a convolution may take several times as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.jax.runtime import clients
from tensorlens.units import format_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes on each device that a program runs on."""

    total: int
    """Arguments, results that do not take the place of one, and what else it computes with."""
    temporary: int
    """Of it, what is neither argument nor result."""


_NONE = Plan(0, 0)
_known: dict[bytes, Plan] = {}
"""By a program's fingerprint; to ask takes as long as the program is large."""


def note() -> str | None:
    """Return a line on the program that needs most, of those that JAX keeps.

    None where its arguments and results, which are arrays as others, are all that it needs.
    """
    programs = [each for client in clients() for each in client.live_executables()]
    plans = [_plan(each) for each in programs]
    most = max(plans, key=lambda plan: plan.total, default=_NONE)
    if not most.temporary:
        return None
    program = programs[plans.index(most)]
    many = f", of {len(programs)} compiled functions" if len(programs) > 1 else ""
    places = len(program.local_devices())
    where = f" on each of {places} devices" if places > 1 else ""
    total, own = format_bytes(most.total), format_bytes(most.temporary)
    return (
        f"XLA has planned most for {_name(program)}{many}: {total}{where} while it runs, {own} of"
        " it beside its arguments and results; kernels may take more for themselves"
    )


def _plan(program: Any) -> Plan:
    try:
        key = program.fingerprint
        if key is None:
            return _asked(program)
        if key not in _known:
            _known[key] = _asked(program)
        return _known[key]
    except (RuntimeError, AttributeError):
        # not every platform tells
        return _NONE


def _asked(program: Any) -> Plan:
    stats = program.get_compiled_memory_stats()
    arrays = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return Plan(arrays + stats.temp_size_in_bytes, stats.temp_size_in_bytes)


def _name(program: Any) -> str:
    try:
        return str(program.hlo_modules()[0].name)
    except (RuntimeError, IndexError):
        return "one"
