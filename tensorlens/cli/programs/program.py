"""Run a program inside this process as ``python`` would."""

from __future__ import annotations

import builtins
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

import tensorlens
from tensorlens.errors import TensorlensError, error_chain
from tensorlens.frameworks.registry import module_spec
from tensorlens.lines import exit_report as exits
from tensorlens.lines import wrappers
from tensorlens.user_code import is_foreign

Compiler = Callable[[bytes, str], types.CodeType]
"""Turns the source of a file into code."""

_PACKAGE = str(Path(tensorlens.__file__).parent) + os.sep
_CLI_FOLDER = str(Path(__file__).parent) + os.sep
_CALL_FILES = (wrappers.__file__, exits.__file__, "<tensorlens call>")
"""Files of our code that runs between the program and the functions it calls."""


def plain_code(source: bytes, filename: str) -> types.CodeType:
    """Compile as ``python`` does."""
    return compile(source, filename, "exec", dont_inherit=True)


@dataclass
class Program:
    """A script, or a module as ``python -m`` runs it."""

    argv: list[str]
    first_path: str
    """First entry of ``sys.path`` while it runs."""
    filename: str | None
    """Its source file, absolute; None when it has none on disk."""
    name: str
    """How the user named it."""
    spec: ModuleSpec | None = None
    """None for a script, which cannot be imported by name."""
    source: bytes | None = None
    _host: Any = field(default=None, repr=False)

    @property
    def content(self) -> bytes | None:
        """The content of its source file; None if unreadable."""
        if self.source is None and self.filename is not None:
            with suppress(OSError):
                return Path(self.filename).read_bytes()
        return self.source

    @property
    def is_unmarked(self) -> bool:
        """Whether it is the user's own code, and nothing in it names tensorlens."""
        if self.filename is None or is_foreign(self.filename):
            return False
        content = self.content
        return content is not None and b"tensorlens" not in content

    def prepare(self) -> None:
        """Give the process the program's ``sys.argv`` and ``sys.path``."""
        sys.argv = list(self.argv) if self.spec is None else ["-m", *self.argv[1:]]
        if not sys.flags.safe_path:
            sys.path[0] = self.first_path

    def execute(self, compile_source: Compiler = plain_code) -> None:
        """Run it; exceptions propagate, with its own frames only in the traceback."""
        main = types.ModuleType("__main__")
        # kept: the frames that called us live in the namespace of the module this replaces
        self._host = sys.modules["__main__"]
        try:
            code = self._load(compile_source)
            sys.argv[0] = self.argv[0]
            vars(main).update(self._names())
            sys.modules["__main__"] = main
            if "__mp_main__" in sys.modules:
                # multiprocessing's name for it, set when tensorlens imported multiprocessing
                sys.modules["__mp_main__"] = main
            exec(code, vars(main))
        except SystemExit:
            raise
        except BaseException as error:
            _hide_our_frames(error)
            own = error.__traceback__
            sys.excepthook = functools.partial(_excepthook, sys.excepthook, error, own)
            raise

    def _load(self, compile_source: Compiler) -> types.CodeType:
        if self.spec is None:
            assert self.source is not None and self.filename is not None
            return compile_source(self.source, self.filename)
        if self.spec.parent:
            import_module(self.spec.parent)
        loader: Any = self.spec.loader
        if compile_source is plain_code or not isinstance(loader, SourceFileLoader):
            code = loader.get_code(self.spec.name)
            assert isinstance(code, types.CodeType)
            return code
        return compile_source(loader.get_data(loader.path), loader.path)

    def _names(self) -> dict[str, Any]:
        spec = self.spec
        names: dict[str, Any] = {"__builtins__": builtins}
        if sys.version_info < (3, 14):
            names["__annotations__"] = {}
        if spec is None:
            assert self.filename is not None
            loader = SourceFileLoader("__main__", self.filename)
            return names | {"__file__": self.filename, "__cached__": None, "__loader__": loader}
        return names | {
            "__file__": spec.origin,
            "__cached__": spec.cached,
            "__loader__": spec.loader,
            "__package__": spec.parent,
            "__spec__": spec,
        }


def program_of(words: list[str]) -> Program:
    """Return the program that ``SCRIPT ARGS`` or ``-m MODULE ARGS`` name.

    Raises:
        TensorlensError: it cannot be found or read.
    """
    if words[0] == "-m":
        return _module(words[1], words[2:])
    return _script(words[0], words[1:])


def _script(name: str, args: list[str]) -> Program:
    """Return the program in a file."""
    path = Path(name)
    if not path.exists():
        raise TensorlensError(f"there is no script {name}")
    if path.is_dir():
        raise TensorlensError(f"{name} is a folder: name the script in it, or the package with -m")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise TensorlensError(f"cannot read {name}: {error.strerror}") from None
    absolute = os.path.abspath(name)  # noqa: PTH100 (as python does: links are kept)
    return Program([name, *args], str(path.resolve().parent), absolute, name, source=source)


def _module(name: str, args: list[str]) -> Program:
    """Return the program that ``python -m name`` runs; nothing is imported yet."""
    folder = str(Path.cwd())
    search = sys.path if sys.flags.safe_path else [folder, *sys.path[1:]]
    before, sys.path = sys.path, search
    try:
        spec = find(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find(f"{name}.__main__")
            if spec is None:
                raise TensorlensError(f"{name} is a package without a __main__: name a module")
    finally:
        sys.path = before
    if spec is None:
        hint = f"; did you mean -m {name[:-3]}?" if name.endswith(".py") else ""
        raise TensorlensError(f"there is no module {name}{hint}")
    if not _has_code(spec):
        raise TensorlensError(f"the module {name} cannot be run: it has no Python code")
    return Program([spec.origin or name, *args], folder, spec.origin, name, spec)


def _has_code(spec: ModuleSpec) -> bool:
    loader: Any = spec.loader
    return isinstance(loader, SourceFileLoader) or (
        hasattr(loader, "get_code") and loader.get_code(spec.name) is not None
    )


def find(name: str) -> ModuleSpec | None:
    """Return the spec of a module without importing code."""
    path: Any = None
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        full_name = ".".join(parts[:end])
        spec = module_spec(sys.meta_path, full_name, path)
        if spec is None:
            return None
        if spec.loader is None and end < len(parts):
            # a folder without __init__.py, whose own folders are looked for in sys.modules
            import_module(full_name)
        path = spec.submodule_search_locations
        if path is None and end < len(parts):
            return None
    return spec


def _excepthook(
    original: Callable[..., Any],
    expected: BaseException,
    own: types.TracebackType | None,
    kind: type[BaseException],
    error: BaseException,
    traceback: types.TracebackType | None,
) -> None:
    sys.excepthook = original
    if error is expected:
        # on its way to the interpreter it has passed through our frames again
        error.__traceback__ = traceback = own
    original(kind, error, traceback)


def _hide_our_frames(error: BaseException) -> None:
    for each in error_chain(error, contexts="all"):
        kept: types.TracebackType | None = None
        importing = False
        for entry in reversed([*_entries(each.__traceback__)]):
            filename = entry.tb_frame.f_code.co_filename
            # Python hides its own importing frames, unless they called ours
            importing = filename.startswith(_CLI_FOLDER) or (
                importing and filename.startswith("<frozen importlib")
            )
            if importing or _is_ours(filename, each):
                continue
            kept = types.TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        each.__traceback__ = kept


def _is_ours(filename: str, error: BaseException) -> bool:
    if filename in _CALL_FILES:
        return True
    return isinstance(error, TensorlensError) and filename.startswith(_PACKAGE)


def _entries(traceback: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next
