"""Lets a process serve that was not prepared for it, from Python 3.14 on (PEP 768)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorlens.errors import TensorlensError
from tensorlens.folders import scratch_folder
from tensorlens.guards import reason

SCRIPT = """\
def _tensorlens_serve():
    try:
        from tensorlens.live import serve
        serve()
    except Exception as error:
        with open({answer!r}, "w", encoding="utf-8") as file:
            file.write(f"{{type(error).__name__}}: {{error}}")
_tensorlens_serve()
del _tensorlens_serve
"""
"""It runs in the main thread of the process, between two instructions."""
_START_SECONDS = 10.0
"""Seconds until the process runs it."""
_PAUSE = 0.05


def inject(pid: int, has_begun: Callable[[], Any]) -> None:
    """Have a process serve.

    Raises:
        TensorlensError: it may not, cannot, or did not in time; the text says why.
    """
    with scratch_folder() as folder:
        script, answer = Path(folder) / "serve.py", Path(folder) / "answer"
        script.write_text(SCRIPT.format(answer=str(answer)), encoding="utf-8")
        try:
            # of 3.14 on, which the caller looked for
            sys.__dict__["remote_exec"](pid, str(script))
        except (OSError, RuntimeError, ValueError) as error:
            raise TensorlensError(f"process {pid} cannot be entered: {reason(error)}") from None
        deadline = time.monotonic() + _START_SECONDS
        while not has_begun():
            if answer.exists():
                text = answer.read_text(encoding="utf-8", errors="replace")
                raise TensorlensError(f"process {pid} cannot be watched: {text}")
            if time.monotonic() > deadline:
                raise TensorlensError(
                    f"process {pid} did not begin to serve in {_START_SECONDS:.0f} s: its standard"
                    " error may tell more, and its main thread may be busy outside of Python"
                )
            time.sleep(_PAUSE)
