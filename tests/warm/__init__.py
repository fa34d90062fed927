"""Interpreters that have imported a framework already: what runs in one starts in no time.

A test that runs programs puts ``python()`` where ``sys.executable`` stands. Each program has a
process of its own as before, a fork of one that has done nothing but import; there the framework,
tensorlens, and what comes with each are not in ``sys.modules`` until the program imports them, and
then all of it is; the garbage collector leaves a framework out. What cannot be had so, such as
options and variables of the interpreter, gets a fresh one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.warm.variables import TOLD, read_at_the_start

_HERE = Path(__file__).parent
_MOST_SECONDS = 120
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
_servers: list[subprocess.Popen[bytes]] = []
"""They end with whoever runs the tests: nobody waits for them."""
_IS_POSSIBLE = sys.platform.startswith("linux")


def python(
    *,
    bare: bool = False,
    device: bool = False,
    keras: bool = False,
    tensorflow: bool = False,
    ends: bool = False,
) -> list[str]:
    """Return the command of an interpreter, to be followed by a program and its arguments.

    Args:
        bare: no framework comes with it, only tensorlens.
        device: it finds the CUDA device that is not there, which has to be loaded before it.
        keras: with torch comes Keras, on the backend that the environment names.
        tensorflow: TensorFlow and Keras in torch's place; not for what is about the interpreter's
            own end, which a fork is spared.
        ends: it ends as an interpreter does, with all that has been imported taken apart, which a
            fork is spared otherwise.
    """
    # the first step of an optimizer imports the second, and so does the first fake tensor
    names: tuple[str, ...] = ("torch", "torch._dynamo")
    if keras:
        names = (*names, "keras")
    if tensorflow:
        names = ("tensorflow", "keras")
    if bare:
        names = ()
    if not _IS_POSSIBLE:
        return [sys.executable]
    found = _command(names, device, tuple(sorted(read_at_the_start(os.environ).items())))
    return [*found, *(["--ends"] if ends and len(found) > 1 else [])]


@functools.cache
def _command(
    names: Sequence[str], device: bool, variables: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    """Return how a server is asked: one for each environment, whichever worker of xdist asks."""
    kind = hashlib.sha256(repr((names, device, variables)).encode()).hexdigest()
    folder = Path(tempfile.gettempdir(), f"warm-{_RUN[:8]}-{kind[:8]}")
    try:
        folder.mkdir()
    except FileExistsError:
        _wait_for(folder / "ready")
    else:
        _start(folder, names, device)
    if not (folder / "socket").exists():
        return (sys.executable,)
    return (sys.executable, "-IS", str(_HERE / "client.py"), str(folder / "socket"))


def _start(folder: Path, names: Sequence[str], device: bool) -> None:
    # found as a program would find them, whatever the one that runs the tests was given
    kept = {key: value for key, value in os.environ.items() if key not in TOLD}
    until = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    given = (str(folder / "socket"), str(until), "yes" if device else "no", *names)
    server = subprocess.Popen(
        [sys.executable, str(_HERE / "server.py"), *given],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={key: value for key, value in kept.items() if not key.startswith("TENSORLENS")},
    )
    _servers.append(server)
    assert server.stdout is not None
    server.stdout.readline()
    (folder / "ready").touch()


def _wait_for(file: Path) -> None:
    end = time.monotonic() + _MOST_SECONDS
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.05)
