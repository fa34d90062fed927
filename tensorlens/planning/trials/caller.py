"""The process that asks, as the processes of its trials need it: its main module and settings.

A trial runs the module level of the main module first, as :mod:`multiprocessing` does, by the name
``__mp_main__``; then it sets what the caller has set (:mod:`.global_settings`). So what a program
does for its whole process (a policy, a seed, a patch of a library) holds in the trial too.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.planning.trials.global_settings import GlobalSettings, apply, settings

_NAME = "__mp_main__"
_INSTALLED = {"site-packages", "dist-packages"}
_OURS = Path(__file__).resolve().parents[2]
_STANDARD = Path(sysconfig.get_path("stdlib")).resolve()


class MainReached(BaseException):
    """Ends the main module where it asks for the trial that it is run for."""


@dataclass(frozen=True, slots=True)
class MainModule:
    """The main module of a process."""

    path: str
    module: str = ""
    """Module given to ``python -m``; empty for a script."""
    argv: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Caller:
    """The process that asks."""

    main: MainModule | None = None
    """None where no file of the user's is run: a notebook, an interactive session, pytest."""
    settings: GlobalSettings = field(default_factory=dict)


class _Run:
    """The run of a main module in this process."""

    module: ModuleType | None = None
    is_on = False


def caller() -> Caller:
    """Return this process as the caller of a trial.

    Raises:
        MainReached: a trial runs this main module for its own caller, which asked here.
    """
    if _Run.is_on:
        raise MainReached
    return Caller(_main(), settings())


def restore(caller: Caller | None, carried: Sequence[str] = ()) -> None:
    """Make this process like the caller's: run its main module, and set what it has set.

    The main module runs once in a process; settings are set with each call.

    Args:
        caller: the process that asks; None changes nothing.
        carried: names of the main module that come from the caller itself, with its values.

    Raises:
        UsageError: there is no such main module.
        SettingRefused: a setting cannot be set here.
    """
    if caller is None:
        return
    if caller.main is not None and _Run.module is None:
        _run(caller.main)
        assert _Run.module is not None
        for name in carried:
            vars(_Run.module).pop(name, None)
    apply(caller.settings)


def adopt(names: dict[str, Any]) -> None:
    """Give the main module that has run the values that come from the caller itself."""
    if _Run.module is not None:
        found = vars(_Run.module)
        found |= {name: value for name, value in names.items() if name not in found}


def _main() -> MainModule | None:
    main = sys.modules.get("__main__")
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if not file or not Path(file).is_file():
        return None
    path = Path(file).resolve()
    is_tool = path.suffix != ".py" and path.parent.name in ("bin", "Scripts")
    is_library = path.is_relative_to(_OURS) or not _INSTALLED.isdisjoint(path.parts)
    if is_tool or is_library or path.is_relative_to(_STANDARD):
        return None
    name = "" if spec is None or spec.name == "__main__" else spec.name
    return MainModule(str(path), name, tuple(sys.argv))


def _run(main: MainModule) -> None:
    sys.argv = list(main.argv)
    if not main.module:
        sys.path.insert(0, str(Path(main.path).parent))
    module = ModuleType(_NAME)
    code = _code(main, module)
    _Run.module = sys.modules["__main__"] = sys.modules[_NAME] = module
    _Run.is_on = True
    try:
        exec(code, vars(module))
    except MainReached:
        # what the caller had done when it asked is done
        pass
    finally:
        _Run.is_on = False


def _code(main: MainModule, module: ModuleType) -> CodeType:
    vars(module).update(__builtins__=builtins, __file__=main.path)
    if main.module:
        spec = importlib.util.find_spec(main.module)
        loader: Any = None if spec is None else spec.loader
        if spec is None or loader is None:
            raise UsageError(f"there is no module {main.module!r}, which the program was run as")
        vars(module).update(__spec__=spec, __package__=spec.parent, __loader__=loader)
        code: CodeType = loader.get_code(main.module)
        return code
    return compile(Path(main.path).read_bytes(), main.path, "exec", dont_inherit=True)
