"""The run that made a record: command, time, host and versions."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

_FRAMEWORKS = ("torch", "tensorflow", "keras")
_LONGEST = 500
"""Characters of a command that are kept."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program, at the time when a record was made."""

    command: str
    started: float
    """Start of the process, in seconds since 1970."""
    seconds: float
    """Seconds from then until the record was made."""
    host: str
    python: str
    system: str
    tensorlens: str
    versions: Mapping[str, str] = field(default_factory=dict)
    """Imported framework to its version."""
    devices: tuple[str, ...] = ()
    """Names of the CUDA devices, if CUDA is in use: ``NVIDIA H100 80GB HBM3``."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts for people, the most interesting first; times are UTC."""
        began = datetime.fromtimestamp(self.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        versions = (f"{name} {version}" for name, version in self.versions.items())
        return (
            self.command,
            f"started {began}, made after {self.seconds:,.1f} s",
            f"{self.host}, {self.system}",
            ", ".join((f"Python {self.python}", *versions)),
            *dict.fromkeys(self.devices),
            f"tensorlens {self.tensorlens}",
        )


def current_run(frameworks: Collection[str] = ()) -> Run | None:
    """Return the run of this process; None if it cannot be determined.

    Args:
        frameworks: frameworks that its child processes imported.
    """
    try:
        now, start = time.time(), _start()
        return Run(
            command=_command(),
            started=start,
            seconds=round(max(now - start, 0.0), 3),
            host=platform.node(),
            python=platform.python_version(),
            system=f"{platform.system()} {platform.machine()}",
            tensorlens=_own_version(),
            versions=_versions(frameworks),
            devices=_devices(),
        )
    except Exception:
        # a record without its run is better than none
        return None


def run_over(records: Iterable[Any]) -> Run | None:
    """Return this process's run, with the frameworks and accelerators of some records."""
    run = current_run()
    if run is None:
        return None
    versions, devices = dict(run.versions), []
    for each in (getattr(record, "run", None) for record in records):
        if each is not None:
            versions |= each.versions
            devices += each.devices
    devices += run.devices
    return replace(run, versions=versions, devices=tuple(dict.fromkeys(devices)))


@cache
def _start() -> float:
    try:
        import psutil

        return float(psutil.Process().create_time())
    except Exception:
        return time.time()


@cache
def _command() -> str:
    command = shlex.join(sys.orig_argv or sys.argv)
    return command if len(command) <= _LONGEST else command[: _LONGEST - 1] + "…"


@cache
def _own_version() -> str:
    from importlib.metadata import version

    return version("tensorlens")


def _versions(elsewhere: Collection[str]) -> dict[str, str]:
    found = {}
    for name in _FRAMEWORKS:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is None and name in elsewhere:
            version = _installed(name)
        if isinstance(version, str):
            found[name] = version
    return found


def _installed(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        # such as tensorflow-cpu
        return None


def _devices() -> tuple[str, ...]:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return ()
    return tuple(cuda.get_device_name(number) for number in range(cuda.device_count()))
