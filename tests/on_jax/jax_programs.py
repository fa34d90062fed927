"""Runs programs that print JSON: a process decides once on its devices and Keras's backend."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ASIDE = Path(sys.prefix) / "jax"
"""Where the Makefile installs JAX, which TensorFlow would import wherever it can."""
HAS_JAX = ASIDE.is_dir() or importlib.util.find_spec("jaxlib") is not None


def printed(*arguments: str, **changes: str) -> str:
    """Return what Python has printed, run with JAX and with changes to its environment."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TENSORLENS")}
    paths = [str(HERE.parents[1]), str(ASIDE), *filter(None, [kept.get("PYTHONPATH")])]
    quiet = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**kept, **quiet, "PYTHONPATH": os.pathsep.join(paths), **changes},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def seen(program: str, **changes: str) -> dict[str, Any]:
    """Return what a program of this folder has printed."""
    found: dict[str, Any] = json.loads(printed(str(HERE / program), **changes).splitlines()[0])
    return found
