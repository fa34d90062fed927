"""Whose code a file is: the user's, or a library's."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path

_INSTALLED = ("/site-packages/", "/dist-packages/")
FRAMEWORKS = ("torch", "tensorflow", "keras")
"""Packages of the frameworks themselves."""


def foreign_folders() -> list[str]:
    """Return how file names of code begin that is not the user's.

    Python's own, installed packages', those of the frameworks imported so far, what their compilers
    make, tensorlens's.
    """
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [sysconfig.get_path(name) for name in names]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in FRAMEWORKS]
    folders += [str(Path(file).parent) for file in (os.__file__, *files) if file]
    folders.append(str(Path(__file__).parents[1]))
    both = {path for folder in folders for path in (folder, os.path.realpath(folder))}
    return ["<frozen ", "<eval_with_key>", *sorted(path + os.sep for path in both)]


def is_foreign(filename: str) -> bool:
    """Tell whether a file is not the user's."""
    folders = _folders(tuple(name in sys.modules for name in FRAMEWORKS))
    return filename.startswith(folders) or any(part in filename for part in _INSTALLED)


@functools.cache
def _folders(imported: tuple[bool, ...]) -> tuple[str, ...]:
    return tuple(foreign_folders())
