"""Loads a native part: the binary that came with the package, or one compiled on first use.

A part is one C++ file. A wheel for Linux has it built for each release of the frameworks, as
``prebuilt/NAME-RELEASE-KEY.so``. Otherwise the user's compiler builds it in a few seconds, and the
cache keeps it as ``NAME-KEY-DIGEST.so``: the key covers all that the binary depends on, and the
digest its bytes, so that a damaged file does not match its name. A file appears by a single rename,
so that several processes may build at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorlens.errors import TensorlensError
from tensorlens.folders import cache_folder, is_private, scratch_folder
from tensorlens.guards import is_from_a_handler, reason

TIMEOUT = 120.0
"""Seconds after which a compiler is stopped; it needs 2 to 15."""

SOURCES = Path(__file__).parent
"""Folder of the C++ sources and shared headers."""

SHARED = SOURCES / "counting", SOURCES / "recording"
"""Folders of headers that several native parts include."""

PREBUILT = SOURCES / "prebuilt"
"""Folder of a wheel's binaries for this machine; absent in a pure wheel."""

_COMPILERS = ("c++", "g++", "clang++")
_shipped: set[str] = set()
"""Names of the parts loaded from the package."""
_REMEDY = "install g++ or set CXX to a working C++ compiler"


class NativeUnavailable(TensorlensError):
    """A native part is unavailable; the text says why and what to do, in one line."""


@dataclass(frozen=True, slots=True)
class NativePart:
    """One C++ file to build."""

    name: str
    label: str
    """Name in messages: ``the native CPU counter``."""
    source: Path
    options: tuple[str, ...] = ()
    """Compiler options on all machines."""
    libraries: tuple[str, ...] = ()
    """Linker options for its libraries, as ``-lc10``; these must be loaded before it."""
    arguments: Callable[[], Sequence[str]] = list
    """Returns compiler arguments for the installed framework: headers and libraries.

    It may raise :class:`NativeUnavailable`.
    """
    release: Callable[[], str | None] = str
    """Returns the release that a shipped binary must match, as ``torch2.13-abi1``.

    None if no shipped binary can match, so that the part must be compiled.
    """
    depends_on: Callable[[], tuple[Any, ...]] = tuple
    """Returns what the binary depends on besides the source, Python and the machine."""


Signatures = Mapping[str, tuple[Any, tuple[Any, ...]]]
"""Function to the types of its result and arguments."""


def declare(library: ctypes.CDLL, signatures: Signatures) -> None:
    """Tell ctypes the types of a library's functions."""
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def load(part: NativePart) -> ctypes.PyDLL:
    """Return the part's library, from the cache or freshly built.

    A ``PyDLL`` keeps the GIL during calls, which is faster than releasing it.

    Raises:
        NativeUnavailable: no compiler, no headers, or the build failed.
    """
    try:
        return _load(part)
    except NativeUnavailable:
        raise
    except Exception as error:
        # the program's call must go on, with coarser figures
        if is_from_a_handler(error):
            raise
        if isinstance(error, OSError):
            raise NativeUnavailable(f"no folder to build {part.label} in: {error}") from None
        raise NativeUnavailable(f"{part.label} was not built: {reason(error)}") from None


def _load(part: NativePart) -> ctypes.PyDLL:
    if sys.platform == "win32":
        raise NativeUnavailable(f"{part.label} is not available on Windows")
    shipped = _shipped_library(part)
    if shipped is not None:
        return shipped
    folder, key = cache_folder(), _key(part)
    for path in _cached(folder, part, key):
        try:
            return ctypes.PyDLL(str(path))
        except OSError:
            path.unlink(missing_ok=True)
    with scratch_folder() as scratch:
        built = Path(scratch) / f"{part.name}.so"
        _compile(part, built)
        # a loaded library outlives its file: without a cache the scratch copy is loaded
        return _load_any(part, _store(built, folder, part, key), built)


def origin(part: NativePart) -> str:
    """Return the origin of a loaded part, as ``doctor`` prints it."""
    if part.name in _shipped:
        return "came built with the package"
    folder = cache_folder()
    if folder is None:
        return "built anew by each process: no folder to keep it in; set XDG_CACHE_HOME to one"
    return f"built, and kept in {folder}"


def shipped_name(part: NativePart, release: str, machine: str) -> str:
    """Return the file name of a part's binary in a wheel for ``machine`` (``x86_64``).

    A change of a source changes the name.
    """
    digest = hashlib.sha256()
    for each in (*map(str.encode, (*part.options, release, machine)), *_contents(part)):
        digest.update(hashlib.sha256(each).digest())
    return "-".join(filter(None, (part.name, release, digest.hexdigest()[:16]))) + ".so"


def _shipped_library(part: NativePart) -> ctypes.PyDLL | None:
    release = part.release() if PREBUILT.is_dir() else None
    if release is None:
        return None
    path = PREBUILT / shipped_name(part, release, platform.machine())
    try:
        library = ctypes.PyDLL(str(path))
    except OSError:
        # none for this release, or the C library is too old
        return None
    _shipped.add(part.name)
    return library


def _contents(part: NativePart) -> list[bytes]:
    return [path.read_bytes() for path in _sources(part)]


def _sources(part: NativePart) -> list[Path]:
    """Return the source, and the headers beside it and in the folders that parts share."""
    folders = (part.source.parent, *SHARED)
    headers = (path for folder in folders for path in folder.glob("*.h*"))
    return [part.source, *sorted(headers)]


def _key(part: NativePart) -> str:
    try:
        sources = _contents(part)
        depends_on = part.depends_on()
    except OSError as error:
        raise NativeUnavailable(
            f"{part.label} was not built: {error.strerror}: {error.filename}"
        ) from None
    parts = (
        *(hashlib.sha256(source).hexdigest() for source in sources),
        *part.options,
        *part.libraries,
        *depends_on,
        sysconfig.get_config_var("SOABI"),
        platform.machine(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _cached(folder: Path | None, part: NativePart, key: str) -> Iterator[Path]:
    if folder is None:
        return
    try:
        if not is_private(Path(os.path.realpath(folder))):
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


def _name(part: NativePart, key: str, binary: Path) -> str:
    return f"{part.name}-{key}-{hashlib.sha256(binary.read_bytes()).hexdigest()[:32]}.so"


def _store(built: Path, folder: Path | None, part: NativePart, key: str) -> Path | None:
    """Move the library into the cache atomically; None if that is not safely possible."""
    if folder is None:
        return None
    temporary = folder / f".{os.getpid()}-{os.urandom(6).hex()}.tmp"
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        # checked again: another user may have made it just now
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


def _load_any(part: NativePart, stored: Path | None, built: Path) -> ctypes.PyDLL:
    problem = ""
    # either folder may be mounted with noexec
    for path in (stored, built):
        if path is not None:
            try:
                return ctypes.PyDLL(str(path))
            except OSError as error:
                problem = str(error)
    raise NativeUnavailable(f"{part.label} was built but does not load: {problem}")


def _compiler(part: NativePart) -> list[str]:
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


def command(
    part: NativePart, output: Path, compiler: Sequence[str], arguments: Sequence[str]
) -> list[str]:
    """Return the compiler command for a part; ``arguments`` come from the framework."""
    mac = sys.platform == "darwin"
    return [
        *compiler,
        *("-O2", "-fPIC", "-fvisibility=hidden", "-w", "-shared"),
        *(f"-I{folder}" for folder in SHARED),
        *(("-undefined", "dynamic_lookup") if mac else ()),
        *(*part.options, str(part.source), "-o", str(output)),
        *arguments,
        *part.libraries,
    ]


def _compile(part: NativePart, output: Path) -> None:
    arguments = command(part, output, _compiler(part), part.arguments())
    shown = shlex.quote(arguments[0])
    try:
        process = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        problem = f"cannot run {shown}: {error.strerror}"
    except subprocess.TimeoutExpired:
        problem = f"{shown} was not done after {TIMEOUT:g} s"
    else:
        if process.returncode == 0 and output.is_file():
            return
        first = _first_error(process.stderr.decode("utf-8", "replace"))
        problem = f"{shown} failed with exit code {process.returncode}{first}"
    raise NativeUnavailable(f"{part.label} was not built: {problem}: {_REMEDY}")


def _first_error(messages: str) -> str:
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    chosen = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")
    return f" ({chosen[:200]})" if chosen else ""
