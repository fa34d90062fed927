"""The top-level lines of a program: whether they do its work, and where they begin to be measured.

A framework's memory is counted from its import on, so they are measured from the first import on
that brought one.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

_Statements = list[ast.stmt]
_BODIES = ("body", "orelse", "finalbody")
_EXITS = {"exit", "SystemExit"}
_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def does_work(tree: ast.Module) -> bool:
    """Tell whether a file does more than define, import and call a function of its own."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)}
    return any(_works(statement, own) for statement in tree.body)


def with_call_after_imports(tree: ast.Module, name: str) -> ast.Module:
    """Call the function ``name`` after each run of imports outside of functions and classes."""
    tree.body = _called_after(tree.body, name)
    return tree


def _works(statement: ast.stmt, own: set[str]) -> bool:
    if isinstance(statement, ast.If):
        return any(_works(each, own) for each in (*statement.body, *statement.orelse))
    if isinstance(statement, (*_IMPORTS, *_DEFINITIONS, ast.Pass)):
        return False
    if isinstance(statement, ast.Raise):
        return statement.exc is not None and not _is_plain(statement.exc, own)
    if isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign)):
        return statement.value is not None and not _is_plain(statement.value, own)
    return True


def _is_plain(value: ast.expr, own: set[str]) -> bool:
    """Tell whether a value is a constant, or what a function of the file gives."""
    if isinstance(value, ast.Call):
        words = {value.func.id} if isinstance(value.func, ast.Name) else set()
        if isinstance(value.func, ast.Attribute):
            words = {value.func.attr}
        if words & _EXITS:
            return all(_is_plain(each, own) for each in value.args)
        return bool(words & own) and isinstance(value.func, ast.Name)
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _called_after(body: Sequence[ast.stmt], name: str) -> _Statements:
    changed: _Statements = []
    for at, statement in enumerate(body):
        if not isinstance(statement, _DEFINITIONS):
            for part in _bodies(statement):
                part[:] = _called_after(part, name)
        changed.append(statement)
        following = body[at + 1] if at + 1 < len(body) else None
        if _is_import(statement) and not isinstance(following, _IMPORTS):
            call = ast.Expr(ast.Call(ast.Name(name, ast.Load()), [], []))
            for node in ast.walk(call):
                # no line of its own
                ast.copy_location(node, statement)
            changed.append(call)
    return changed


def _bodies(statement: ast.stmt) -> list[_Statements]:
    bodies = [body for field in _BODIES if (body := getattr(statement, field, None))]
    return bodies + [handler.body for handler in getattr(statement, "handlers", ())]


def _is_import(statement: ast.stmt) -> bool:
    from_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    return isinstance(statement, _IMPORTS) and not from_future
