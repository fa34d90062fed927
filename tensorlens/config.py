"""Settings: an option in the code, else the environment, else ``[tool.tensorlens]``, else default.

=================  =====================  ==================================================
in pyproject.toml  in the environment     meaning
=================  =====================  ==================================================
``enabled``        ``TENSORLENS``         ``0``, ``false``, ``off``, ``no``: decorators do nothing
``devices``        ``TENSORLENS_DEVICES`` names to report on, comma-separated or a list
``stream``         ``TENSORLENS_STREAM``  ``stdout`` (default) or ``stderr``: where tables go
``ranks``          ``TENSORLENS_RANKS``   ``first`` (default) or ``all``: which ranks print tables
``source``         ``TENSORLENS_SOURCE``  as ``enabled``: source lines are left out
=================  =====================  ==================================================
"""

from __future__ import annotations

import functools
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.ranks import current_rank

_OFF = frozenset({"0", "false", "off", "no"})
_STREAMS = ("stdout", "stderr")
_RANKS = ("first", "all")


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force, before any option given in the code."""

    enabled: bool = True
    devices: tuple[str, ...] | None = None
    stream: str = "stdout"
    ranks: str = "first"
    source: bool = True


def load(environment: dict[str, str] | None = None, folder: Path | None = None) -> Config:
    """Return the settings of an environment and of the ``pyproject.toml`` in a folder.

    Raises:
        UsageError: a setting has an invalid value; the text names it.
    """
    env = os.environ if environment is None else environment
    table = _table((folder or Path()) / "pyproject.toml")
    enabled = env.get("TENSORLENS") or table.get("enabled", True)
    devices = env.get("TENSORLENS_DEVICES") or table.get("devices")
    stream = env.get("TENSORLENS_STREAM") or table.get("stream", "stdout")
    if isinstance(devices, str):
        devices = [name.strip() for name in devices.split(",") if name.strip()]
    if devices is not None and not _is_names(devices):
        raise UsageError(f"devices = {devices!r}: give names such as 'cpu' or 'cuda:0'")
    if stream not in _STREAMS:
        raise UsageError(f"stream = {stream!r}: give one of {', '.join(_STREAMS)}")
    ranks = env.get("TENSORLENS_RANKS") or table.get("ranks", "first")
    if ranks not in _RANKS:
        raise UsageError(f"ranks = {ranks!r}: give one of {', '.join(_RANKS)}")
    source = env.get("TENSORLENS_SOURCE") or table.get("source", True)
    return Config(
        enabled=is_on(enabled),
        devices=tuple(devices) if devices else None,
        stream=stream,
        ranks=ranks,
        source=is_on(source),
    )


def enabled() -> bool:
    """Return whether decorators measure, by the environment and the project file."""
    return current().enabled


def prints_tables() -> bool:
    """Return whether this process prints tables unasked; of a job, by the setting ``ranks``."""
    rank = current_rank()
    return rank is None or rank.number == 0 or current().ranks == "all"


@functools.cache
def current() -> Config:
    """Return the settings of this process, read once."""
    return load()


def _table(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)["tool"]["tensorlens"]
    except (OSError, ValueError, LookupError, TypeError):  # not ours to complain about
        return {}
    return table if isinstance(table, dict) else {}


def is_on(value: Any) -> bool:
    """Return whether a setting's value does not switch it off."""
    return str(value).strip().lower() not in _OFF


def _is_names(devices: Any) -> bool:
    return isinstance(devices, list) and all(isinstance(name, str) for name in devices)
