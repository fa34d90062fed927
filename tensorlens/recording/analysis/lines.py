"""The line that a block is counted for, and the module."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.recording.analysis.phases import landmark
from tensorlens.records.events import Context, Stacks
from tensorlens.records.tensors import SourceLine

_WITHIN_LINE = ("<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
"""Functions that may begin in the middle of a line of another one."""


class Lines:
    """Lines and modules of stacks and contexts; -1 stands for no stack and no context.

    In backward a block goes to the innermost frame of the user that the autograd engine called
    (what checkpoints compute again, hooks, the backward of a custom function), else to the line
    that made the node that ran, else to the line that ran backward. Modules are found the same way.
    Where a stack has no frame of the user at all, its innermost frame of Python stands for it, else
    its innermost of C++.

    Where the user's frame calls a model that a library defines, there is a second line: the
    innermost of the model's own code. A line is one line whatever functions begin in it: those of
    a comprehension or lambda go by the name of the function around them.
    """

    def __init__(self, stacks: Stacks, contexts: Sequence[Context]) -> None:
        self._stacks = stacks
        self._contexts = contexts
        self._lines = _lines(stacks)
        self._user: list[int] = []
        self._python: list[int] = []
        self._user_inside: list[int] = []
        self._module: list[int] = []
        self._module_inside: list[int] = []
        self._below_engine: list[bool] = []
        self._model: list[int] = []
        self._model_inside: list[int] = []
        self._engines = [landmark(frame) == "backward" for frame in stacks.frames]
        """Whether a frame calls the autograd engine."""
        self._walk()

    def born(self, stack: int) -> SourceLine | None:
        """Return the innermost line of the user, None where there is no stack."""
        return None if stack < 0 else self._line(self._charged(stack, -1, "other"))

    def charged(self, stack: int, context: int, phase: str) -> SourceLine | None:
        """Return the line that a block is counted for; None where no line is known."""
        node = self._charged(stack, context, phase)
        return None if node < 0 else self._line(node)

    def calls(self, stack: int, context: int, phase: str) -> tuple[SourceLine, ...]:
        """Return the line of :meth:`charged` and the user's lines that called it, each once.

        What called the autograd engine is none of them where the line is one that it called.
        """
        node = self._charged(stack, context, phase)
        line = None if node < 0 else self._line(node)
        found = {} if line is None else {line: None}
        while node >= 0 and not self._engines[self._stacks.frame[node]]:
            line = self._line(node) if self._user[node] == node else None
            if line is not None:
                found[line] = None
            node = self._stacks.parent[node]
        return tuple(found)

    def _charged(self, stack: int, context: int, phase: str) -> int:
        """Return the node of the stack that a block is counted for, or -1."""
        if phase != "backward":
            return -1 if stack < 0 else _first(self._user[stack], self._python[stack], stack)
        forward = self._forward(context)
        inside, outside = _at(self._user_inside, stack), _at(self._user, stack)
        if self._is_of_graph(stack, context):
            inside = -1
        users = inside, _at(self._user, forward), outside
        return _first(*users, _at(self._python, forward), _at(self._python, stack), forward, stack)

    def model(self, stack: int, context: int, phase: str) -> SourceLine | None:
        """Return the line of a library's model that the line of :meth:`charged` calls, or None."""
        node = _at(self._model, stack)
        if phase == "backward":
            user, node = _at(self._user_inside, stack), _at(self._model_inside, stack)
            if self._is_of_graph(stack, context):
                user = node = -1
            if user < 0 and node < 0:
                node = _at(self._model, self._forward(context))
        return None if node < 0 else self._line(node)

    def module(self, stack: int, context: int, phase: str) -> str | None:
        """Return the path of the module that a block belongs to, None outside of modules."""
        if context >= 0 and self._contexts[context].module is not None:
            return self._contexts[context].module
        number = _at(self._module, stack)
        if phase == "backward":
            made = _at(self._module, self._forward(context))
            number = _first(_at(self._module_inside, stack), made, number)
        return None if number < 0 else self._stacks.modules[number]

    def _is_of_graph(self, stack: int, context: int) -> bool:
        """Tell whether whoever recorded said that it is backward, and no engine called it."""
        if context < 0 or self._contexts[context].phase is None:
            return False
        return stack < 0 or not self._below_engine[stack]

    def _forward(self, context: int) -> int:
        return -1 if context < 0 else self._contexts[context].forward

    def _line(self, node: int) -> SourceLine | None:
        frame = self._stacks.frames[self._stacks.frame[node]]
        # a native frame without debug information is no line of anyone's
        return self._lines[frame.filename, frame.lineno] if frame.lineno > 0 else None

    def _walk(self) -> None:
        stacks = self._stacks
        users = [frame.user for frame in stacks.frames]
        models = [frame.model for frame in stacks.frames]
        pythons = [frame.is_python for frame in stacks.frames]
        engines = self._engines
        columns = zip(stacks.parent, stacks.frame, stacks.module, strict=True)
        for node, (parent, frame, module) in enumerate(columns):
            user = node if users[frame] else -1
            self._user.append(_first(user, _at(self._user, parent)))
            python = node if pythons[frame] else -1
            self._python.append(_first(python, _at(self._python, parent)))
            self._module.append(_first(module, _at(self._module, parent)))
            below = parent >= 0 and self._below_engine[parent]
            self._below_engine.append(engines[frame] or below)
            outer = -1 if engines[frame] else parent
            self._user_inside.append(_first(user, _at(self._user_inside, outer)))
            self._module_inside.append(_first(module, _at(self._module_inside, outer)))
            model = node if models[frame] else -1
            # what the user's own code computes inside of a library's model is the user's
            self._model.append(-1 if users[frame] else _first(model, _at(self._model, parent)))
            self._model_inside.append(
                -1 if users[frame] else _first(model, _at(self._model_inside, outer))
            )


def _lines(stacks: Stacks) -> dict[tuple[str, int], SourceLine]:
    found: dict[tuple[str, int], SourceLine] = {}
    for frame in sorted(stacks.frames, key=lambda frame: frame.function.endswith(_WITHIN_LINE)):
        found.setdefault((frame.filename, frame.lineno), frame.line)
    return found


def _at(values: Sequence[int], number: int) -> int:
    return -1 if number < 0 else values[number]


def _first(*numbers: int) -> int:
    return next((number for number in numbers if number >= 0), -1)
