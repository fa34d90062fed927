"""Runs programs that print JSON: a process decides once on its devices and Keras's backend."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def seen(program: str, **changes: str) -> dict[str, Any]:
    """Return what a program of this folder has printed, run with changes to its environment."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TENSORLENS")}
    paths = [str(HERE.parents[1]), *filter(None, [kept.get("PYTHONPATH")])]
    quiet = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, str(HERE / program)],
        env={**kept, **quiet, "PYTHONPATH": os.pathsep.join(paths), **changes},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return found
