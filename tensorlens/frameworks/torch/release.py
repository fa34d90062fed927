"""Which torch this is: a tuple of numbers, as rules that changed between releases compare it."""

from __future__ import annotations

import re

Release = tuple[int, int, int]


def parse_release(version: str) -> Release:
    """Return the numbers of a version: ``2.13.0+cpu`` is ``(2, 13, 0)``, as ``2.13.0a0`` is.

    What has no numbers in front is newer than any release: a build from source.
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if match is None:
        return (999, 0, 0)
    major, minor, micro = match.groups(default="0")
    return int(major), int(minor), int(micro)


def installed_release() -> Release:
    """Return the release of the torch that is installed."""
    import torch

    return parse_release(str(torch.__version__))
