"""``tensorlens doctor``: what can be measured here, how exactly, and how to get what is missing."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from tensorlens.cli.options import add_json
from tensorlens.cli.output import show
from tensorlens.errors import TensorlensError
from tensorlens.frameworks.diagnosis import Finding, unusable
from tensorlens.guards import reason
from tensorlens.render.blocks import Block, Column, Heading, Section, Table
from tensorlens.render.formats import text_of_blocks

_EXTRAS = (
    ("pandas", "pandas", "pandas", "report.to_pandas()"),
    ("IPython", "ipython", "ipython", "%tlrun and tables in Jupyter"),
)
_FRAMEWORKS = ("torch", "tensorflow")
_PATIENCE = 300.0
"""Seconds that an import and two compilations may take."""


def add_doctor(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "doctor",
        description="Tell what can be measured on this machine, from which source and how exactly,"
        " and what is missing and how to get it. No device is initialised.",
    )
    add_json(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 0 when memory can be measured at all, else 1."""
    findings = list(examine())
    measurable = any(finding.measures for finding in findings)
    if args.json:
        text = json.dumps(
            {
                "schema": "tensorlens.doctor",
                "version": 1,
                "measurable": measurable,
                "findings": [asdict(finding) for finding in findings],
            },
            indent=1,
        )
    else:
        text = text_of_blocks(_blocks(findings))
    show(f"{text.rstrip()}\n")
    return 0 if measurable else 1


def examine() -> Iterator[Finding]:
    """Yield the findings: Python, the frameworks, then extras of reports."""
    yield _python()
    for name in _FRAMEWORKS:
        found = _framework(name)
        yield from found
        if name == "torch" and not any(each.measures for each in found):
            yield _process()
    for module, package, extra, feature in _EXTRAS:
        if find_spec(module) is None:
            remedy = f"for {feature}: pip install 'tensorlens[{extra}]'"
            yield Finding(module, False, f"not installed; {remedy}")
        else:
            yield Finding(_with_version(module, package), True, f"gives {feature}")


def _python() -> Finding:
    if sys.version_info >= (3, 12):
        tracer = "lines traced by sys.monitoring"
    else:
        tracer = "lines: hooks in profiled functions, sys.settrace for blocks"
    return Finding(f"Python {platform.python_version()}", True, tracer)


def _framework(name: str) -> list[Finding]:
    """Examine a framework in a process of its own."""
    if find_spec(name) is None:
        return [Finding(name, False, f"not installed; pip install 'tensorlens[{name}]'")]
    program = [sys.executable, "-m", "tensorlens.frameworks.diagnosis", name]
    try:
        done = subprocess.run(
            program, capture_output=True, text=True, errors="replace", timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return [unusable(name, f"its import took more than {_PATIENCE:g} s")]
    except OSError as error:
        return [unusable(name, reason(error))]
    found = [] if done.returncode else _findings(done.stdout)
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return found or [unusable(name, last)]


def _findings(printed: str) -> list[Finding]:
    """Return the last that were printed: a framework may print before them, and at its end."""
    for line in reversed(printed.splitlines()):
        with suppress(ValueError, TypeError):
            if found := [Finding(**each) for each in json.loads(line)]:
                return found
    return []


def _process() -> Finding:
    from tensorlens.frameworks.host.counters import process_counter

    try:
        counter = process_counter()
    except TensorlensError as error:
        return Finding("cpu", False, str(error))
    why = "torch's own figures need a torch that works"
    detail = f"{counter.source}: {counter.precision}; {why}"
    return Finding("cpu", True, detail, measures=True)


def _with_version(name: str, package: str) -> str:
    try:
        return f"{name} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return name


def _blocks(findings: Sequence[Finding]) -> list[Block]:
    """Return what can be measured, and a table of all that was looked at."""
    devices: dict[str, list[str]] = {}
    for each in findings:
        if each.measures:
            devices.setdefault(each.part_of or "this process", []).append(each.name)
    measured = "; ".join(f"{part} on {', '.join(names)}" for part, names in devices.items())
    answer = f"Memory can be measured here: {measured}" if measured else "Nothing can be measured"
    yes, no = ("\N{CHECK MARK}", "\N{BALLOT X}") if _can_print("✓✗") else ("ok", "--")
    columns = (Column("", "text"), Column("Part", "text"), Column("Source, precision", "prose"))
    rows = (
        (yes if each.ok else no, f"- {each.name}" if each.part_of else each.name, each.detail)
        for each in findings
    )
    return [Section((Heading(answer), Table(columns, tuple(rows))))]


def _can_print(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
