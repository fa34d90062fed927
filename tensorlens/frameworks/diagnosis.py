"""Findings of ``tensorlens doctor`` on an installed framework; starts no device.

As a program it prints them as JSON: importing a framework is slow, prints, and can fail in any way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module

from tensorlens.errors import TensorlensError
from tensorlens.frameworks.base import Counter
from tensorlens.guards import first_line

_FIGURES = ("allocated", "peak", "reserved")
_ANOTHER = "TENSORLENS_COUNTER asks for another"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's table."""

    name: str
    ok: bool
    detail: str
    """Source and precision; or why it is missing and how to get it."""
    measures: bool = False
    """Whether it measures memory."""
    part_of: str = ""
    """The finding that it belongs to: ``torch`` for torch's counters."""


def examine(name: str) -> list[Finding]:
    """Import a framework and return the findings, the framework itself first."""
    try:
        title = f"{name} {import_module(name).__version__}"
    except Exception as error:
        return [unusable(name, _in_one_line(error))]
    try:
        if name == "torch":
            # before modules that need a newer one are imported
            import_module("tensorlens.frameworks.torch.native").check_release()
        of_framework = import_module(f"tensorlens.frameworks.{name}.diagnosis")
        parts: Sequence[Finding] = of_framework.diagnose()
    except Exception as error:
        detail = f"it works, but tensorlens cannot read it: {_in_one_line(error)}"
        return [Finding(title, False, detail)]
    whole = Finding(title, True, "its allocators count the bytes")
    return [whole, *(replace(each, part_of=name) for each in parts)]


def unusable(name: str, reason: str) -> Finding:
    """Return the finding of a framework that cannot be imported."""
    return Finding(name, False, f"installed but unusable: {reason}; reinstall {name}")


def part(name: str, problem: str | None, detail: str) -> Finding:
    """Return the finding of a part that works unless there is a problem."""
    return Finding(name, problem is None, detail if problem is None else problem)


def native_counter(is_native: bool, fallback: str | None, origin: str) -> Finding:
    """Return the finding of the native counter; ``fallback`` is why it is not in use."""
    return part("native counter", None if is_native else fallback or _ANOTHER, origin)


def counter_finding(name: str, counter: Counter, *before: str) -> Finding:
    """Return the finding of a device's counter, with texts to put before its figures."""
    missing = counter.missing
    figures = [each for each in _FIGURES if each not in missing]
    if figures:
        told = [f"{', '.join(figures)} from: {counter.source}; {counter.precision}"]
        told += [f"no {figure}: {reason}" for figure, reason in missing.items()]
    else:
        told = [*dict.fromkeys(missing.values())]
    measures = "allocated" in figures
    return Finding(name, measures, "; ".join([*before, *told]), measures)


def _in_one_line(error: Exception) -> str:
    line = first_line(error)
    is_told = isinstance(error, TensorlensError) or line == type(error).__name__
    return line if is_told else f"{type(error).__name__}: {line}"


if __name__ == "__main__":
    # on a line of its own, as the framework may have printed too
    found = [asdict(each) for each in examine(sys.argv[1])]
    sys.stdout.write(f"\n{json.dumps(found)}\n")
