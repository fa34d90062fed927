"""torch's release as a tuple of numbers, for rules that differ between releases."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from tensorlens.errors import UsageError

Release = tuple[int, int, int]
OLDEST: Release = (2, 6, 0)
"""The oldest that is tested, and the first that tells the order of its attention kernels."""
_NEWEST: Release = (999, 0, 0)


def parse_release(version: str) -> Release:
    """Return the numbers of a version: ``(2, 13, 0)`` of ``2.13.0+cpu`` and of ``2.13.0a0``.

    A version without numbers, of a build from source, is newer than any release.
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if match is None:
        return _NEWEST
    major, minor, micro = match.groups(default="0")
    return int(major), int(minor), int(micro)


def installed_release() -> Release:
    """Return the release of the torch that is installed, without importing it."""
    return parse_release(_version())


def check_release() -> None:
    """Refuse a torch that is too old.

    Raises:
        UsageError: it is too old; the text says what to do.
    """
    if installed_release() < OLDEST:
        oldest = f"{OLDEST[0]}.{OLDEST[1]}"
        raise UsageError(
            f"torch {_version()} is too old: tensorlens needs torch {oldest} or later: "
            f"pip install -U 'torch>={oldest}'"
        )


def version_text() -> str:
    """Return the text of torch's ``version.py``; empty if there is none. Does not import torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        return Path(spec.origin).with_name("version.py").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _version() -> str:
    module = sys.modules.get("torch")
    if module is not None and hasattr(module, "__version__"):
        return str(module.__version__)
    stated = re.search(r"__version__ = ['\"]([^'\"]+)", version_text())
    return "" if stated is None else stated[1]
