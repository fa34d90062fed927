"""Tells the user's code from a library's, by its file; and functions whose call runs nothing."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from tensorlens.folders import temporary_folder

ANYTHING = "*"
"""Stands for any part of a file name."""
_INSTALLED = ("/site-packages/", "/dist-packages/")
FRAMEWORKS = ("torch", "tensorflow", "keras")
"""Packages of the frameworks themselves."""


def foreign_prefixes() -> list[str]:
    """Return the beginnings of file names that are not the user's code, some with ``ANYTHING``.

    Python's own, installed packages', those of the frameworks imported so far, what their compilers
    make, tensorlens's.
    """
    # a console script only calls what is installed
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    folders = [sysconfig.get_path(name) for name in names]
    folders += [str(Path(file).parent) for file in (os.__file__, __file__)]
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    folders += [compiled] if compiled else []
    temporary = temporary_folder()
    generated = sorted({*_generated(str(temporary))}) if temporary else []
    return [
        "<frozen ",
        "<eval_with_key>",
        "<tensorlens ",
        *generated,
        *_begins([*folders, *_framework_folders()]),
    ]


def _framework_folders() -> list[str]:
    files = [getattr(sys.modules.get(name), "__file__", None) for name in FRAMEWORKS]
    return [str(Path(file).parent) for file in files if file]


def _begins(folders: Iterable[str]) -> tuple[str, ...]:
    """Return how the names of files in folders begin, with links and without."""
    both = {path for folder in folders for path in (folder, os.path.realpath(folder))}
    return tuple(sorted(path + os.sep for path in both))


def _generated(folder: str) -> Iterator[str]:
    """Give how the names of files begin that frameworks write code into."""
    for path in (folder, os.path.realpath(folder)):
        yield f"{path}{os.sep}torchinductor_"
        yield f"{path}{os.sep}__autograph_generated_file"
        # torch_geometric writes a module for each class of layers
        yield f"{path}{os.sep}{ANYTHING}_propagate_"
        yield f"{path}{os.sep}{ANYTHING}_edge_updater_"


def is_foreign(filename: str) -> bool:
    """Tell whether a file is not the user's."""
    begins, patterns = _folders(tuple(name in sys.modules for name in FRAMEWORKS))
    if filename.startswith(begins) or any(part in filename for part in _INSTALLED):
        return True
    return any(filename.startswith(start) and part in filename for start, part in patterns)


def is_framework(filename: str) -> bool:
    """Tell whether a file is one of a framework's own."""
    return filename.startswith(_frameworks(tuple(name in sys.modules for name in FRAMEWORKS)))


# `imported` is the key of the caches: a framework that is imported later brings a folder
@functools.cache
def _frameworks(imported: tuple[bool, ...]) -> tuple[str, ...]:
    return _begins(_framework_folders())


@functools.cache
def _folders(imported: tuple[bool, ...]) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    found = foreign_prefixes()
    patterns = [each.partition(ANYTHING) for each in found if ANYTHING in each]
    begins = tuple(each for each in found if ANYTHING not in each)
    return begins, [(start, part) for start, _, part in patterns]


def not_run_by_a_call(function: object) -> str:
    """Return which kind of function it is if a call runs nothing of it; else an empty text."""
    if inspect.iscoroutinefunction(function):
        return "coroutine function"
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return "generator function" if is_generator else ""
