"""Builds the native CPU counter on first use, and keeps it in the user's cache.

The one C++ file is compiled with the user's compiler against the headers of the installed torch,
in about a second. The result is kept as ``counter-KEY-DIGEST.so``: the key stands for all that the
binary depends on, and the digest for its bytes, so that a damaged file is known by its name and a
finished one appears in a single rename, however many processes build at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from tensorlens.errors import TensorlensError

SOURCE = Path(__file__).with_name("counter.cpp")

TIMEOUT = 120.0
"""Seconds after which a compiler is taken to hang; it needs about one."""

_COMPILERS = ("c++", "g++", "clang++")
_REMEDY = "install g++ or set CXX to a working C++ compiler"


class NativeUnavailable(TensorlensError):
    """The native counter cannot be had; the text says why and what to do, in one line."""


def load() -> ctypes.PyDLL:
    """Return the native library, from the cache or freshly built.

    It is a ``PyDLL``: its functions keep the GIL, which makes calls cheaper than giving it away.

    Raises:
        NativeUnavailable: no compiler, no headers, or the build failed.
    """
    if sys.platform == "win32":
        raise NativeUnavailable("the native CPU counter is not available on Windows")
    folder, key = cache_folder(), _key()
    for path in _cached(folder, key):
        try:
            return ctypes.PyDLL(str(path))
        except OSError:
            path.unlink(missing_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="tensorlens-") as scratch:
            built = Path(scratch) / "counter.so"
            _compile(built)
            # a loaded library outlives its file, so the scratch copy serves when no cache can
            return _load_any(_store(built, folder, key), built)
    except OSError as error:
        raise NativeUnavailable(f"no folder to build the native CPU counter in: {error}") from None


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/tensorlens/native``, by default below ``~/.cache``."""
    # the XDG base directory specification: a relative path is to be ignored
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if Path(home).is_absolute() else Path("~/.cache").expanduser()
    return base / "tensorlens" / "native"


def _torch_folder() -> Path:
    return Path(torch.__file__).resolve().parent


def _libc10() -> Path:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return _torch_folder() / "lib" / f"libc10.{suffix}"


def _key() -> str:
    try:
        stat = _libc10().stat()
        library = (stat.st_size, stat.st_mtime_ns)
        source = SOURCE.read_bytes()
    except OSError as error:
        raise NativeUnavailable(
            f"the native CPU counter was not built: {error.strerror}: {error.filename}"
        ) from None
    parts = (
        hashlib.sha256(source).hexdigest(),
        torch.__version__,
        torch.version.git_version,
        _cxx11_abi(),
        library,
        sysconfig.get_config_var("SOABI"),
        platform.machine(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _cxx11_abi() -> int:
    return int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))


def _is_private(path: Path) -> bool:
    """Tell whether nobody but this user could have written ``path``."""
    stat = path.lstat()
    return stat.st_uid == os.geteuid() and stat.st_mode & 0o022 == 0


def _cached(folder: Path, key: str) -> Iterator[Path]:
    try:
        if not _is_private(folder.resolve()):
            return
        for path in sorted(folder.glob(f"counter-{key}-*.so")):
            if not _is_private(path):
                continue
            if path.name == _name(key, path):
                yield path
            else:
                path.unlink(missing_ok=True)
    except OSError:
        return


def _name(key: str, binary: Path) -> str:
    return f"counter-{key}-{hashlib.sha256(binary.read_bytes()).hexdigest()[:32]}.so"


def _store(built: Path, folder: Path, key: str) -> Path | None:
    """Put the library into the cache in one step; None where that cannot be done safely."""
    temporary = folder / f".{os.getpid()}-{os.urandom(6).hex()}.tmp"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_private(folder.resolve()):
            return None
        try:
            temporary.touch(mode=0o600, exist_ok=False)
            temporary.write_bytes(built.read_bytes())
            return temporary.replace(folder / _name(key, built))
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:
        return None


def _load_any(stored: Path | None, built: Path) -> ctypes.PyDLL:
    problem = ""
    # either folder may be mounted without the right to execute
    for path in (stored, built):
        if path is not None:
            try:
                return ctypes.PyDLL(str(path))
            except OSError as error:
                problem = str(error)
    raise NativeUnavailable(f"the native CPU counter was built but does not load: {problem}")


def _compiler() -> list[str]:
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise NativeUnavailable(
            f"the native CPU counter was not built: CXX cannot be read ({error}): {_REMEDY}"
        ) from None
    if chosen:
        return chosen
    for name in _COMPILERS:
        if shutil.which(name):
            return [name]
    raise NativeUnavailable(
        "the native CPU counter was not built: no C++ compiler was found "
        f"(looked for {', '.join(_COMPILERS)}): {_REMEDY}"
    )


def _standard() -> str:
    """Return the ``-std=`` that this torch's headers ask for."""
    match = re.search(r"C\+\+ Version: (\d{4})", torch.__config__.show())
    return "c++20" if match is not None and int(match[1]) >= 2020 else "c++17"


def _command(output: Path) -> list[str]:
    folder = _torch_folder()
    include, library = folder / "include", folder / "lib"
    if not (include / "c10" / "core" / "Allocator.h").is_file():
        raise NativeUnavailable(
            f"the native CPU counter was not built: this torch has no C++ headers ({include}): "
            "install torch from its wheels"
        )
    mac = sys.platform == "darwin"
    return [
        *_compiler(),
        f"-std={_standard()}",
        *("-O2", "-fPIC", "-fvisibility=hidden", "-w", "-shared"),
        *(("-undefined", "dynamic_lookup") if mac else ()),
        f"-D_GLIBCXX_USE_CXX11_ABI={_cxx11_abi()}",
        *("-isystem", str(include), str(SOURCE), "-o", str(output)),
        *(f"-L{library}", "-lc10", f"-Wl,-rpath,{library}"),
    ]


def _compile(output: Path) -> None:
    command = _command(output)
    shown = shlex.quote(command[0])
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
            f"the native CPU counter was not built: cannot run {shown}: {error.strerror}: {_REMEDY}"
        ) from None
    try:
        _, messages = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise NativeUnavailable(
            "the native CPU counter was not built: "
            f"{shown} was not done after {TIMEOUT:g} s: {_REMEDY}"
        ) from None
    finally:
        _end(process)
    if process.returncode != 0 or not output.is_file():
        reason = _first_error(messages.decode("utf-8", "replace"))
        raise NativeUnavailable(
            "the native CPU counter was not built: "
            f"{shown} failed with exit code {process.returncode}{reason}: {_REMEDY}"
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
