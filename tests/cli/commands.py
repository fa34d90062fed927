"""Runs the command line as a user does, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import warm

ROOT = Path(__file__).parents[2]
LAUNCHER = "import sys; from tensorlens.cli import main; sys.exit(main())"
WITH_TRIALS = ("estimate", "compare", "suggest")
"""Verbs that run a program in processes of their own."""


def environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TENSORLENS")}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "PYTHONIOENCODING": "utf-8", **changes}


def python(
    folder: Path,
    *arguments: str,
    stdin: str = "",
    interpreter: Sequence[str] = (sys.executable,),
    **changes: str,
):
    return subprocess.run(
        [*interpreter, *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment(**changes),
        timeout=300,
    )


def tensorlens(
    folder: Path, *arguments: str, interpreter: Sequence[str] | None = None, **options: Any
):
    """Run it as the installed command does: by a launcher that is no module.

    Where no interpreter is given, the process is warm, with tensorlens alone. Processes of trials
    are warm whatever is given.
    """
    launcher = LAUNCHER
    if arguments and arguments[0] in WITH_TRIALS:
        module = "from tensorlens.planning import processes"
        trials = warm.python(device=True)
        launcher = f"{module}; processes.interpreter = lambda: {trials!r}; {LAUNCHER}"
    given = interpreter or warm.python(bare=True)
    # -c leaves '' first in sys.path, where the launcher's folder stands for the command
    return python(folder, "-c", launcher, *arguments, interpreter=given, **options)


def fresh_tensorlens(folder: Path, *arguments: str, **options: Any):
    """Run it in an interpreter of its own, which ends as any other."""
    return tensorlens(folder, *arguments, interpreter=[sys.executable], **options)


def warm_tensorlens(folder: Path, *arguments: str, **options: Any):
    """Run it in an interpreter that imports torch in no time, and leaves it out of the heap."""
    return tensorlens(folder, *arguments, interpreter=warm.python(), **options)


def own_lines(stderr: str) -> list[str]:
    """The lines of a standard error that are tensorlens's."""
    return [line for line in stderr.splitlines() if line.startswith("tensorlens: ")]


def program_lines(stderr: str) -> list[str]:
    """The other lines: those of the program."""
    return [line for line in stderr.splitlines() if not line.startswith("tensorlens: ")]
