"""``tensorlens doctor``: what can be measured here, how exactly, and how to get what is missing."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from tensorlens.cli.options import add_json
from tensorlens.cli.output import show
from tensorlens.errors import TensorlensError
from tensorlens.render import text_of_blocks
from tensorlens.render.blocks import Block, Column, Heading, Section, Table
from tensorlens.render.figures import counted

_EXTRAS = (
    ("pandas", "pandas", "pandas", "report.to_pandas()"),
    ("IPython", "ipython", "ipython", "%tlrun and tables in Jupyter"),
)
_PATIENCE = 300.0
"""Seconds that an import and two compilations may take."""
_ANOTHER = "TENSORLENS_COUNTER asks for another"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table."""

    name: str
    ok: bool
    detail: str
    """Its source and precision; or why it is missing and how to get it."""
    measures: bool = False
    """Whether memory can be measured by it."""
    part_of: str = ""
    """The finding it belongs to: ``torch`` for the sources of torch's figures."""


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
    """Yield what is found, first what everything rests on."""
    yield _python()
    yield from _torch()
    yield from _tensorflow()
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


def _torch() -> Iterator[Finding]:
    if find_spec("torch") is None:
        yield Finding("torch", False, "not installed; pip install 'tensorlens[torch]'")
        yield _process("torch's own figures need torch")
        return
    name = "torch"
    try:
        name = f"torch {importlib.import_module('torch').__version__}"
        importlib.import_module("tensorlens.frameworks.torch.release").check_release()
        inventory = importlib.import_module("tensorlens.frameworks.torch.inventory").take()
    except Exception as error:  # a broken install can fail in any way, and that is the finding
        works = name != "torch"
        yield Finding(name, False, _unusable("torch", _in_one_line(error), works))
        yield _process("torch's own figures need a torch that works")
        return
    yield Finding(f"torch {inventory.version}", True, "its allocators count the bytes")
    for source in inventory.sources:
        yield _source(source)
        if source.name == "cpu":
            native = None if inventory.native else inventory.fallback or _ANOTHER
            yield _part("torch", "native counter", native, inventory.origin)
            read = "tensors and their holders are read natively"
            yield _part("torch", "snapshots", inventory.slow, read)
            births = "the line that allocates a tensor is known"
            yield _part("torch", "births", inventory.no_births, births)


def _part(framework: str, name: str, problem: str | None, detail: str) -> Finding:
    return Finding(name, problem is None, detail if problem is None else problem, part_of=framework)


def _in_one_line(error: Exception) -> str:
    reason = (str(error).strip().splitlines() or [""])[0]
    return reason if isinstance(error, TensorlensError) else f"{type(error).__name__}: {reason}"


def _unusable(framework: str, reason: str, works: bool) -> str:
    """Return the detail of a framework that fails, or that works and that we fail with."""
    if works:
        return f"it works, but tensorlens cannot read it: {reason}"
    return f"installed but unusable: {reason}; reinstall {framework}"


def _source(source: Any) -> Finding:
    if not source.built:
        detail = f"not in this torch; needs {source.build}"
        return Finding(source.name, False, detail, part_of="torch")
    if source.devices == 0:
        detail = "this process sees no device; check the driver and what hides devices"
        return Finding(source.name, False, detail, part_of="torch")
    parts = [] if source.name == "cpu" else [_devices(source.devices)]
    if source.figures:
        parts.append(f"{', '.join(source.figures)} from: {source.source}; {source.precision}")
        parts += [f"no {figure}: {reason}" for figure, reason in source.missing.items()]
    else:
        parts += dict.fromkeys(source.missing.values())
    return Finding(source.name, source.measurable, "; ".join(parts), source.measurable, "torch")


def _devices(count: int | None) -> str:
    if count is None:
        return "number of devices unknown until it is initialised"
    return counted(count, "device")


def _process(why: str) -> Finding:
    from tensorlens.frameworks.host.counters import process_counter

    try:
        counter = process_counter()
    except TensorlensError as error:
        return Finding("cpu", False, str(error))
    detail = f"{counter.source}: {counter.precision}; {why}"
    return Finding("cpu", True, detail, measures=True)


def _tensorflow() -> Iterator[Finding]:
    if find_spec("tensorflow") is None:
        remedy = "pip install 'tensorlens[tensorflow]'"
        yield Finding("tensorflow", False, f"not installed; {remedy}")
        return
    found = _of_tensorflow()
    if isinstance(found, str):
        yield Finding("tensorflow", False, _unusable("tensorflow", found, works=False))
        return
    if "failure" in found:
        detail = _unusable("tensorflow", found["failure"], works=True)
        name = f"tensorflow {found.get('version', '')}".rstrip()
        yield Finding(name, False, detail)
        return
    yield Finding(f"tensorflow {found['version']}", True, "its allocators count the bytes")
    detail = f"{', '.join(found['figures'])} from: {found['source']}; {found['precision']}"
    yield Finding("cpu", True, detail, measures=True, part_of="tensorflow")
    native = None if found["native"] else found["fallback"] or _ANOTHER
    no_gpu = "not in this tensorflow; needs a build for GPUs: tensorflow[and-cuda]"
    gpu = f"a {found['gpu']} build: allocated and peak from get_memory_info"
    for name, problem, detail in (
        ("native counter", native, found["origin"]),
        ("snapshots", found["unread"], "tensors and variables are read natively"),
        ("graph functions", found["not_followed"], "nodes go to the lines that made them"),
        ("gpu", no_gpu if found["gpu"] is None else None, gpu),
    ):
        yield _part("tensorflow", name, problem, detail)


def _of_tensorflow() -> dict[str, Any] | str:
    """Return what a process of its own found, or one line on why the import failed."""
    program = [sys.executable, "-m", "tensorlens.frameworks.tensorflow.inventory"]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return {"failure": f"its import took more than {_PATIENCE:g} s"}
    except OSError as error:
        return {"failure": _in_one_line(error)}
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


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
