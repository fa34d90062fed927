"""Interpreters that have imported a framework already: what runs in one starts in no time.

A test that runs programs puts ``python()`` where ``sys.executable`` stands. Each program has a
process of its own as before, a fork of one that has done nothing but import; there the framework,
tensorlens, and what comes with each are not in ``sys.modules`` until the program imports them, and
then all of it is. What cannot be had in this way, such as options and variables of the interpreter,
gets a fresh one.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.warm.variables import TOLD, read_at_the_start

_HERE = Path(__file__).parent
_IS_POSSIBLE = sys.platform.startswith("linux")


def python(
    *,
    bare: bool = False,
    fakes: bool = False,
    device: bool = False,
    keras: bool = False,
    tensorflow: bool = False,
) -> list[str]:
    """Return the command of an interpreter, to be followed by a program and its arguments.

    Args:
        bare: no framework comes with it, only tensorlens.
        fakes: torch comes with what it imports for the first fake tensor, and the garbage
            collector leaves all that out.
        device: it finds the CUDA device that is not there, which has to be loaded before it.
        keras: with torch comes Keras, on the backend that the environment names.
        tensorflow: TensorFlow and Keras in torch's place, left out by the collector, too; not for
            what is about the interpreter's own end, which a fork is spared.
    """
    names: tuple[str, ...] = ("torch", "torch._dynamo") if fakes or device else ("torch",)
    if keras:
        names = (*names, "keras")
    if tensorflow:
        names = ("tensorflow", "keras")
    if bare:
        names = ()
    if not _IS_POSSIBLE:
        return [sys.executable]
    return [*_command(names, device, tuple(sorted(read_at_the_start(os.environ).items())))]


@functools.cache
def _command(
    names: Sequence[str], device: bool, variables: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    """Start a server, one for each environment that an interpreter would be started with."""
    folder = tempfile.TemporaryDirectory(prefix="warm-", ignore_cleanup_errors=True)
    address = Path(folder.name) / "socket"
    # found as a program would find them, whatever the one that runs the tests was given
    kept = {key: value for key, value in os.environ.items() if key not in TOLD}
    server = subprocess.Popen(
        [sys.executable, str(_HERE / "server.py"), str(address), "yes" if device else "no", *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={key: value for key, value in kept.items() if not key.startswith("TENSORLENS")},
    )
    assert server.stdin is not None and server.stdout is not None
    stdin = server.stdin

    def end() -> None:
        stdin.close()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    if server.stdout.readline() != b"listening\n":
        return (sys.executable,)
    return (sys.executable, "-IS", str(_HERE / "client.py"), str(address))
