"""Python stacks of the program, with the modules whose calls are on them."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from tensorlens.planning.patches import patched
from tensorlens.records.logs.stacks import Frame, Stacks
from tensorlens.user_code import is_foreign


class ProgramStacks:
    """Adds the running stacks to a tree, with the frames inside of :meth:`call_program` as nodes.

    Calls of ``torch.nn.Module`` are followed while it is entered.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._nodes: dict[tuple[int, int, int, str | None], int] = {}
        self._code: dict[int, CodeType] = {}
        """Code objects by address, kept alive so that addresses stay unique."""
        self._local = _Calls()
        self._paths: dict[int, tuple[weakref.ref[Any], str]] = {}
        """Module and its path, by address of the module."""
        self._original = torch.nn.Module._call_impl
        self._call: CodeType | None = None

    def __enter__(self) -> ProgramStacks:
        original, local = self._original, self._local

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            calls = local.modules
            calls.append(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                calls.pop()

        self._call = call.__code__
        torch.nn.Module._call_impl = call
        return self

    def __exit__(self, *exception: object) -> None:
        torch.nn.Module._call_impl = self._original

    def call_program(self, function: Any, *args: Any) -> Any:
        """Call a function of the program."""
        return function(*args)

    def node(self, frame: FrameType | None) -> int:
        """Return the node of a frame and its callers; -1 without a frame."""
        outermost = ProgramStacks.call_program.__code__
        calls = self._local.modules
        depth = len(calls)
        chain: list[tuple[FrameType, int, str | None]] = []
        while frame is not None:
            code = frame.f_code
            if code is outermost:
                break
            if code is self._call:
                depth -= 1
                if chain and depth >= 0:
                    inner, lasti, _ = chain[-1]
                    chain[-1] = inner, lasti, self.path(calls[depth])
            else:
                chain.append((frame, frame.f_lasti, None))
            frame = frame.f_back
        nodes, node = self._nodes, -1
        for frame, lasti, path in reversed(chain):
            key = node, id(frame.f_code), lasti, path
            known = nodes.get(key)
            if known is None:
                known = nodes[key] = self._push(node, frame, path)
            node = known
        return node

    def path(self, module: Any) -> str:
        """Return a module's path below the outermost module that is being called."""
        known = self._known_path(module)
        if known is None:
            calls = self._local.modules
            for path, each in (calls[0] if calls else module).named_modules():
                if self._known_path(each) is None:
                    self._paths[id(each)] = weakref.ref(each), path or type(each).__name__
            known = self._known_path(module)
        if known is None:
            known = type(module).__name__
            self._paths[id(module)] = weakref.ref(module), known
        return known

    def _known_path(self, module: Any) -> str | None:
        reference, path = self._paths.get(id(module), (None, ""))
        return path if reference is not None and reference() is module else None

    def _push(self, parent: int, frame: FrameType, path: str | None) -> int:
        code = frame.f_code
        self._code[id(code)] = code
        filename = code.co_filename
        line = Frame(filename, frame.f_lineno or 0, code.co_qualname, not is_foreign(filename))
        return self._stacks.push(parent, line, path)


@contextlib.contextmanager
def node_stacks(stacks: ProgramStacks) -> Iterator[None]:
    """Store in every autograd node the number of the stack that made it.

    torch's anomaly mode stores the lines that ``torch.fx.traceback.format_stack`` returns.
    """
    import torch.fx.traceback as traceback

    def number_of_stack() -> list[str]:
        return [str(stacks.node(sys._getframe(1)))]

    with (
        patched(traceback, "format_stack", number_of_stack),
        torch.autograd.set_detect_anomaly(True, check_nan=False),
    ):
        yield


class _Calls(threading.local):
    def __init__(self) -> None:
        self.modules: list[Any] = []
