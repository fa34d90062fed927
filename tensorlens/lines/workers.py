"""Reports of spawned workers in files of their own, beside that of ``tensorlens run -o``."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from tensorlens.guards import warn
from tensorlens.lines.report import LineReport
from tensorlens.render.formats import save, tagged
from tensorlens.streams import write

_VARIABLE = "TENSORLENS_WORKERS_OUTPUT"


def set_workers_output(path: Path | None) -> None:
    """Have workers spawned from now on write beside this file, or print if None."""
    if path is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = str(path)


def workers_output() -> Path | None:
    """Return the file that workers write beside; None if they print."""
    path = os.environ.get(_VARIABLE)
    return Path(path) if path else None


def write_of_worker(report: LineReport, path: Path) -> bool:
    """Write a spawned worker's report to ``run.4711.json`` beside ``run.json``.

    Returns:
        Whether that succeeded; if not, print the tables instead.
    """
    path = path.with_name(tagged(path.name, str(os.getpid())))
    try:
        save(report, path)
    except Exception as error:
        warn(f"{path} was not written, its figures are printed instead", error)
        return False
    with suppress(OSError, ValueError, AttributeError):
        typed = path.name if path.parent == Path.cwd() else path
        write(f"tensorlens: wrote {typed}\n", sys.stderr)
    return True
