"""Builds a native part on first use, and keeps it in the user's cache.

A part is one C++ file, compiled with the user's compiler in about a second. The result is kept as
``NAME-KEY-DIGEST.so``: the key stands for all that the binary depends on, and the digest for its
bytes, so that a damaged file is known by its name and a finished one appears in a single rename,
however many processes build at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorlens.errors import TensorlensError
from tensorlens.folders import cache_folder, is_private, scratch_folder
from tensorlens.guards import reason
from tensorlens.signals import is_from_a_handler

TIMEOUT = 120.0
"""Seconds after which a compiler is taken to hang; it needs about one."""

SOURCES = Path(__file__).parent
"""The folders of C++ sources, one for each part and one of shared headers."""

SHARED = SOURCES / "counting"
"""Headers that native parts of several frameworks include."""

_COMPILERS = ("c++", "g++", "clang++")
_hung: set[str] = set()
"""Compilers that were not done in time: the next part does not wait for them again."""
_REMEDY = "install g++ or set CXX to a working C++ compiler"


class NativeUnavailable(TensorlensError):
    """A native part cannot be had; the text says why and what to do, in one line."""


@dataclass(frozen=True, slots=True)
class Part:
    """One C++ file to build."""

    name: str
    label: str
    """Name in messages: ``the native CPU counter``."""
    source: Path
    arguments: Callable[[], Sequence[str]] = list
    """Gives compiler arguments besides the source and the common ones.

    It may raise :class:`NativeUnavailable`.
    """
    depends_on: Callable[[], tuple[Any, ...]] = tuple
    """Gives what the binary depends on besides the source, Python and the machine."""


def load(part: Part) -> ctypes.PyDLL:
    """Return the part's library, from the cache or freshly built.

    It is a ``PyDLL``: its functions keep the GIL, which makes calls cheaper than giving it away.

    Raises:
        NativeUnavailable: no compiler, no headers, or the build failed.
    """
    try:
        return _load(part)
    except NativeUnavailable:
        raise
    except OSError as error:
        raise NativeUnavailable(f"no folder to build {part.label} in: {error}") from None
    except Exception as error:
        # this runs within the program's own calls: they go on with coarser figures
        if is_from_a_handler(error):
            raise
        raise NativeUnavailable(f"{part.label} was not built: {reason(error)}") from None


def _load(part: Part) -> ctypes.PyDLL:
    if sys.platform == "win32":
        raise NativeUnavailable(f"{part.label} is not available on Windows")
    folder, key = cache_folder(), _key(part)
    for path in _cached(folder, part, key):
        try:
            return ctypes.PyDLL(str(path))
        except OSError:
            path.unlink(missing_ok=True)
    with scratch_folder() as scratch:
        built = Path(scratch) / f"{part.name}.so"
        _compile(part, built)
        # a loaded library outlives its file, so the scratch copy serves when no cache can
        return _load_any(part, _store(built, folder, part, key), built)


def _sources(part: Part) -> list[Path]:
    """Return the source, and the headers beside it and in the folder that parts share."""
    folders = (part.source.parent, SHARED)
    headers = (path for folder in folders for path in folder.glob("*.h*"))
    return [part.source, *sorted(headers)]


def _key(part: Part) -> str:
    try:
        sources = [path.read_bytes() for path in _sources(part)]
        depends_on = part.depends_on()
    except OSError as error:
        raise NativeUnavailable(
            f"{part.label} was not built: {error.strerror}: {error.filename}"
        ) from None
    parts = (
        *(hashlib.sha256(source).hexdigest() for source in sources),
        *depends_on,
        sysconfig.get_config_var("SOABI"),
        platform.machine(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _cached(folder: Path | None, part: Part, key: str) -> Iterator[Path]:
    if folder is None:
        return
    try:
        if not is_private(folder.resolve()):
            return
        for path in sorted(folder.glob(f"{part.name}-{key}-*.so")):
            if not is_private(path):
                continue
            if path.name == _name(part, key, path):
                yield path
            else:
                path.unlink(missing_ok=True)
    except OSError:
        return


def _name(part: Part, key: str, binary: Path) -> str:
    return f"{part.name}-{key}-{hashlib.sha256(binary.read_bytes()).hexdigest()[:32]}.so"


def _store(built: Path, folder: Path | None, part: Part, key: str) -> Path | None:
    """Put the library into the cache in one step; None where that cannot be done safely."""
    if folder is None:
        return None
    temporary = folder / f".{os.getpid()}-{os.urandom(6).hex()}.tmp"
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        # once more: someone else may have made it just now
        if cache_folder() != folder:
            return None
        try:
            temporary.touch(mode=0o600, exist_ok=False)
            temporary.write_bytes(built.read_bytes())
            return temporary.replace(folder / _name(part, key, built))
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:
        return None


def _load_any(part: Part, stored: Path | None, built: Path) -> ctypes.PyDLL:
    problem = ""
    # either folder may be mounted without the right to execute
    for path in (stored, built):
        if path is not None:
            try:
                return ctypes.PyDLL(str(path))
            except OSError as error:
                problem = str(error)
    raise NativeUnavailable(f"{part.label} was built but does not load: {problem}")


def _compiler(part: Part) -> list[str]:
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise NativeUnavailable(
            f"{part.label} was not built: CXX cannot be read ({error}): {_REMEDY}"
        ) from None
    if chosen:
        return chosen
    for name in _COMPILERS:
        if shutil.which(name):
            return [name]
    raise NativeUnavailable(
        f"{part.label} was not built: no C++ compiler was found "
        f"(looked for {', '.join(_COMPILERS)}): {_REMEDY}"
    )


def _command(part: Part, output: Path) -> list[str]:
    mac = sys.platform == "darwin"
    return [
        *_compiler(part),
        *("-O2", "-fPIC", "-fvisibility=hidden", "-w", "-shared", f"-I{SHARED}"),
        *(("-undefined", "dynamic_lookup") if mac else ()),
        *(str(part.source), "-o", str(output)),
        *part.arguments(),
    ]


def _compile(part: Part, output: Path) -> None:
    command = _command(part, output)
    shown = shlex.quote(command[0])
    hangs = f"{part.label} was not built: {shown} was not done after {TIMEOUT:g} s: {_REMEDY}"
    if command[0] in _hung:
        raise NativeUnavailable(hangs)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            # a group of its own: a compiler driver's children have to go with it
            start_new_session=True,
        )
    except OSError as error:
        raise NativeUnavailable(
            f"{part.label} was not built: cannot run {shown}: {error.strerror}: {_REMEDY}"
        ) from None
    try:
        _, messages = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        _hung.add(command[0])
        raise NativeUnavailable(hangs) from None
    finally:
        _end(process)
    if process.returncode != 0 or not output.is_file():
        first = _first_error(messages.decode("utf-8", "replace"))
        raise NativeUnavailable(
            f"{part.label} was not built: "
            f"{shown} failed with exit code {process.returncode}{first}: {_REMEDY}"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _first_error(messages: str) -> str:
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    chosen = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")
    return f" ({chosen[:200]})" if chosen else ""
