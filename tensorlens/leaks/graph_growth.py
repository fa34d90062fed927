"""Growth of one tensor's autograd graph: its variable, and advice."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from tensorlens.heap.paths import reference_paths
from tensorlens.leaks.advice import name_of
from tensorlens.leaks.report import Growth, GrowthKind, place_of, source_of
from tensorlens.leaks.watched_loop import FollowedLoop
from tensorlens.render.figures import counted

_PLAIN = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


@dataclass(frozen=True, slots=True)
class GraphGrowth:
    """Growth of the graph of one tensor. It refers to no object of the program."""

    name: str
    nodes_per_step: float
    path: str
    """The shortest path that holds the tensor."""
    advice: str

    @property
    def rate(self) -> str:
        """Its rate: ``grows by 9 nodes a step``."""
        return f"grows by {counted(round(self.nodes_per_step), 'node')} a step"

    @property
    def growth(self) -> Growth:
        """The growth without bytes, which are not known."""
        text = f"the autograd graph of {self.name} {self.rate}; {self.advice}"
        return Growth(GrowthKind.GRAPH, text, 0.0, self.path)


def graph_growth(steps: FollowedLoop, made: int) -> GraphGrowth | None:
    """Return the growth of the graph that grew most in ``made`` steps, if one did."""
    grown = steps.growing_graph(made)
    if grown is None:
        return None
    paths = reference_paths([grown.tensor])[0]
    references = paths[0].references if paths else ()
    name = name_of(references[-1], references[-1].text) if references else "a tensor"
    made_at = "" if grown.line is None else f"made at {place_of(grown.line)}: "
    todo = f"{made_at}{_advice(source_of(grown.line), name, is_number=grown.is_number)}"
    return GraphGrowth(name, grown.nodes_per_step, str(paths[0]) if paths else "", todo)


def _advice(source: str, name: str, *, is_number: bool) -> str:
    """Return the advice: ``use total += loss.item(), or .detach()``."""
    sum_text = _detached_sum(source)
    first, second = (".item()", ", or .detach()") if is_number else (".detach()", "")
    if sum_text is None:
        return f"add x{first}{second} to {name}, not x"
    return f"use {sum_text}{first}{second}"


def _detached_sum(source: str) -> str | None:
    """Return a statement ``total += loss`` or ``total = total + loss``, ready for a ``.item()``."""
    try:
        (statement,) = ast.parse(source).body
    except (SyntaxError, ValueError):
        # part of a statement
        return None
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return f"{ast.unparse(statement.target)} += {_operand(statement.value)}"
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.BinOp):
        return None
    target, value = ast.unparse(statement.targets[0]), statement.value
    if not isinstance(value.op, ast.Add) or ast.unparse(value.left) != target:
        return None
    return f"{target} = {target} + {_operand(value.right)}"


def _operand(value: ast.expr) -> str:
    text = ast.unparse(value)
    return text if isinstance(value, _PLAIN) else f"({text})"
