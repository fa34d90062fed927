"""References of instances: attributes, hooks, exceptions' parts, what optimizers keep."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.frameworks.heap.paths import look
from tensorlens.frameworks.heap.paths.nodes import Node
from tensorlens.frameworks.heap.paths.step import Step
from tensorlens.frameworks.heap.rows import TRANSPARENT, mro
from tensorlens.records.leaks import Reference
from tensorlens.records.names import key_text

_NAME = type.__dict__["__name__"].__get__


def of_instance(nodes: Sequence[Node], before: Reference | None) -> Step:
    """Return which attribute refers to the next."""
    holder, child = nodes[:2]
    owner = look.owner_name(holder)
    taken = 1
    if look.is_dict_of(holder, child):
        if len(nodes) == 2:
            return Step(Reference("attribute", f"{owner}.__dict__ (attribute)"))
        key = look.key_of(child, nodes[2])
        name = key if type(key) is str else f"[{key_text(key)}]" if look.has_key(key) else "?"
        taken = 2
    else:
        name = look.attribute_of(holder, child)
    rest = nodes[taken:]
    if len(rest) > 1 and look.is_of(rest[0], dict):
        special = _of_registry(name, owner, rest, before)
        if special is not None:
            return Step(special, taken + 1)
    if look.is_of(holder, BaseException):
        if name == "__traceback__":
            return Step(Reference("traceback", "traceback"), taken)
        if name in ("__cause__", "__context__"):
            return Step(Reference("exception", name), taken)
    if name == "<OrderedDict>" and _derives(holder, "TensorBase") and len(rest) > 1:
        return Step(Reference("hook", f"{owner} hook"), taken + 1)
    if name.startswith("<") and _derives(holder, "TensorBase"):
        if "Backward" in name or name == "<AccumulateGrad>":
            return Step(Reference("graph", "grad_fn"), taken)
    if name.startswith("<"):
        return Step(Reference("attribute", owner), taken)
    kind = _kind(name, holder)
    return Step(Reference(kind, f"{owner}.{name} ({kind})"), taken)


def _of_registry(
    name: str, owner: str, rest: Sequence[Node], before: Reference | None
) -> Reference | None:
    key = look.key_of(rest[0], rest[1])
    if name in TRANSPARENT and type(key) is str:
        return Reference("attribute", f"{owner}.{key} (attribute)")
    if name.startswith("_") and name.endswith("_hooks"):
        words = name.strip("_").removesuffix("s").replace("_", " ")
        length = look.length(rest[0])
        return Reference("hook", f"{_module_name(owner, before)} {words}", "", length)
    return None


def _module_name(owner: str, before: Reference | None) -> str:
    """Return a module by the name it has where it was last spoken of, else its type's."""
    if before is not None and before.kind in ("attribute", "global", "local", "class attribute"):
        name = before.text.removesuffix(f" ({before.kind})").rpartition(" ")[2]
        last = name.rpartition(".")[2]
        return last if last.isidentifier() else name
    return owner


def _kind(name: str, holder: Node) -> str:
    if name == "state" and _derives(holder, "Optimizer"):
        return "optimizer state"
    if name in ("_result", "_exception") and _derives(holder, "Future"):
        return "future"
    return "attribute"


def _derives(holder: Node, name: str) -> bool:
    """Tell whether a type of that name is among those an object's type derives from."""
    return any(_NAME(kind) == name for kind in mro(type(holder.object)))
