"""Python stacks of the program, and the modules whose calls are on them."""

from __future__ import annotations

import threading
from types import CodeType, FrameType
from typing import Any

import torch

from tensorlens.frameworks.code import is_foreign
from tensorlens.records.events import Frame, Stacks


class ProgramStacks:
    """Gives the node of the stack that runs now.

    While it is entered, calls of ``torch.nn.Module`` are followed; what lies outside of
    :meth:`call_program` is not part of a stack.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._nodes: dict[tuple[int, int, int, int], int] = {}
        self._code: dict[int, CodeType] = {}
        """By address, kept so that no other takes it."""
        self._local = _Calls()
        self._paths: dict[int, str] = {}
        self._modules: list[Any] = []
        """Kept so that no other takes their address."""
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
        """Call what the program begins with."""
        return function(*args)

    def node(self, frame: FrameType | None) -> int:
        """Return the node of a frame and all outside of it; -1 for none."""
        outermost = ProgramStacks.call_program.__code__
        calls = self._local.modules
        depth = len(calls)
        chain: list[tuple[FrameType, int, int]] = []
        module = 0
        while frame is not None:
            code = frame.f_code
            if code is outermost:
                break
            if code is self._call:
                depth -= 1
                if chain and depth >= 0:
                    inner, lasti, _ = chain[-1]
                    chain[-1] = inner, lasti, id(calls[depth])
            else:
                chain.append((frame, frame.f_lasti, module))
            frame = frame.f_back
        nodes, node = self._nodes, -1
        for frame, lasti, module in reversed(chain):
            key = node, id(frame.f_code), lasti, module
            known = nodes.get(key)
            if known is None:
                known = nodes[key] = self._push(node, frame, module)
            node = known
        return node

    def path(self, module: Any) -> str:
        """Return the path of a module below the outermost one whose call is on."""
        if id(module) not in self._paths:
            calls = self._local.modules
            root = calls[0] if calls else module
            for path, found in root.named_modules():
                self._learn(found, path or type(found).__name__)
            if id(module) not in self._paths:
                self._learn(module, type(module).__name__)
        return self._paths[id(module)]

    def _learn(self, module: Any, path: str) -> None:
        if self._paths.setdefault(id(module), path) is path:
            self._modules.append(module)

    def _push(self, parent: int, frame: FrameType, module: int) -> int:
        code = frame.f_code
        self._code[id(code)] = code
        filename = code.co_filename
        line = Frame(filename, frame.f_lineno or 0, code.co_qualname, not is_foreign(filename))
        path = None
        if module:
            path = self.path(next(each for each in self._local.modules if id(each) == module))
        return self._stacks.push(parent, line, path)


class _Calls(threading.local):
    def __init__(self) -> None:
        self.modules: list[Any] = []
