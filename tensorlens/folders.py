"""Folders that tensorlens writes to: its cache, and temporary folders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tensorlens.errors import TensorlensError


def cache_folder() -> Path | None:
    """Return the cache folder of native parts, which need not exist yet; None if there is none.

    The first of these that nobody else can write to: ``$XDG_CACHE_HOME/tensorlens/native``, the
    same below ``~/.cache``, and ``tensorlens-UID/native`` in the folder for temporary files.
    A container may have neither a home nor an entry for its user.
    """
    return next(filter(_is_usable, _candidates()), None)


def temporary_folder() -> Path | None:
    """Return the folder for temporary files, ``$TMPDIR`` or the system's; None if none."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return None


def scratch_file() -> IO[bytes]:
    """Return a temporary file without a name.

    Raises:
        TensorlensError: there is no folder for one.
    """
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise TensorlensError(_no_scratch(error)) from None


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is removed at the end of a ``with`` statement.

    Raises:
        TensorlensError: there is no place for one.
    """
    try:
        return tempfile.TemporaryDirectory(prefix="tensorlens-")
    except OSError as error:
        raise TensorlensError(_no_scratch(error)) from None


def _no_scratch(error: OSError) -> str:
    return f"no folder for temporary files ({error.strerror or error}): set TMPDIR to one"


def is_private(path: Path) -> bool:
    """Return whether only this user can write to ``path``."""
    stat = path.lstat()
    return stat.st_uid == os.geteuid() and stat.st_mode & 0o022 == 0


def _candidates() -> Iterator[Path]:
    # the XDG base directory specification: a relative path is to be ignored
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        yield base / "tensorlens" / "native"
    # unlike Path.home() it leaves the tilde where there is no home
    home = Path(os.path.expanduser("~"))  # noqa: PTH111
    if home.is_absolute():
        yield home / ".cache" / "tensorlens" / "native"
    shared = temporary_folder()
    if shared is not None and hasattr(os, "geteuid"):
        own = shared / f"tensorlens-{os.geteuid()}"
        if not os.path.lexists(own) or is_private(own):
            yield own / "native"


def _is_usable(folder: Path) -> bool:
    """Return whether a folder is writable and private, or can be made if it does not exist."""
    try:
        if os.path.lexists(folder):
            is_own = is_private(Path(os.path.realpath(folder)))
            return is_own and os.access(folder, os.W_OK | os.X_OK)
        above = next(each for each in folder.parents if os.path.lexists(each))
        return above.is_dir() and os.access(above, os.W_OK | os.X_OK)
    except OSError:
        return False
