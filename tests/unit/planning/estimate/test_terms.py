import ast
from pathlib import Path

import tensorlens
from tensorlens.planning.estimate.terms import names, rule

FAKE = Path(tensorlens.__file__).parent / "planning" / "torch"
MAKERS = ("scratch", "Scratch", "exactly")


def test_every_name_that_memory_is_given_has_its_rule() -> None:
    told = {
        text.value
        for path in FAKE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for text in _names(node)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    }
    assert len(told) > 40
    assert told - names() == set()


def test_a_name_that_is_not_known_is_told_in_general() -> None:
    assert rule("no such name") == "a kernel takes it for itself while it runs"


def _names(node: ast.AST) -> list[ast.expr]:
    """Return what may be a name: arguments of a maker, and what a loop gives to one."""
    if isinstance(node, ast.Call) and _called(node) in MAKERS:
        return node.args
    if isinstance(node, ast.For) and getattr(node.target, "id", "") == "name":
        makes = any(
            isinstance(each, ast.Call) and _called(each) in MAKERS for each in _within(node)
        )
        return node.iter.elts if makes and isinstance(node.iter, ast.Tuple) else []
    return []


def _within(loop: ast.For) -> list[ast.AST]:
    return [inner for each in loop.body for inner in ast.walk(each)]


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))
