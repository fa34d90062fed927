"""Advice on a leak, in one line, for causes that its path and facts prove."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tensorlens.frameworks.base import TORCH, AdviceWords
from tensorlens.leaks.report import Example
from tensorlens.records.references import Reference, ReferencePath
from tensorlens.units import format_bytes

_VARIABLES = ("local", "global", "closure", "frame")
_OF_GRAPH = ("graph", "saved")
_SMALL_VIEW = 0.5
"""Fraction of its storage below which a view is small."""
_VARIABLE = re.compile(r"(?:.*\(\): )?(?P<name>[^\W\d][\w.]*)(?: \([^()]*\))?")


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a leak beside its example and its paths."""

    steps: int = 2
    """Number of steps that left something behind: a container with fewer items does not grow."""
    is_in_array: bool = False
    """Whether a NumPy array holds the memory."""
    is_replaced: bool = False
    """Whether it is one tensor that a larger one replaces in each step."""
    role: str = "other"
    variable: str | None = None
    """The variable to which the line that made it assigns."""
    carried: str | None = None
    """The variable that this line reads from the step before, and replaces."""
    words: AdviceWords = TORCH


def advice(
    paths: Sequence[ReferencePath], example: Example, facts: Facts | None = None
) -> str | None:
    """Return what to do so that nothing is left behind; None if that is not sure.

    Args:
        paths: all paths that hold the example. The leak ends only if none is left, so there is no
            advice if the cause of one is not known.
        example: the latest of the kept tensors.
        facts: other facts of the leak.
    """
    if not paths or any(not path.references for path in paths):
        return None
    several = [path for path in paths if not _is_one_variable(path)]
    known = example, facts or Facts()
    found = [_of_path(_Path(each.references, each.is_cut, *known)) for each in several or paths]
    texts = dict.fromkeys(text for text in found if text is not None)
    return "; ".join(texts) if None not in found and len(texts) <= 2 else None


def _is_one_variable(path: ReferencePath) -> bool:
    """Return whether a path is one variable, which holds the latest tensor and no other."""
    return len(path.references) == 1 and path.references[0].kind in _VARIABLES


@dataclass(frozen=True, slots=True)
class _Path:
    references: Sequence[Reference]
    is_cut: bool
    example: Example
    facts: Facts

    def place(self, *kinds: str) -> int | None:
        """Return the index of the first reference of these kinds."""
        places = (at for at, each in enumerate(self.references) if each.kind in kinds)
        return next(places, None)

    def first(self, kind: str) -> Reference | None:
        """Return the first reference of a kind."""
        place = self.place(kind)
        return None if place is None else self.references[place]

    def grows(self, begin: int = 0, end: int | None = None) -> int | None:
        """Return the index of the container that grows in ``references[begin:end]``, if clear.

        Of several that are long enough, it is the one whose last item is on the path.
        """
        places = [
            at
            for at, each in enumerate(self.references[:end])
            if at >= begin and self.may_grow(each)
        ]
        if len(places) > 1:
            places = [at for at in places if _is_last(self.references[at])]
        return places[0] if len(places) == 1 else None

    def may_grow(self, each: Reference) -> bool:
        long = each.limit is None and (each.length or 0) >= self.facts.steps
        return long and each.kind in ("item", "key") and not each.text.startswith("tuple")


def _of_path(path: _Path) -> str | None:
    if path.is_cut:
        # whoever holds the container, its items stay
        return _container(path)
    causes = (_by_kind, _optimizer, _default, _graph, _small_view, _number_without_graph)
    last = _larger if path.facts.is_replaced else _container
    return next(filter(None, (cause(path) for cause in (*causes, last))), None)


_KEEPS_ALL = "it keeps the graphs of all steps before"


def _by_kind(path: _Path) -> str | None:
    """Return the advice on a reference whose kind shows the cause."""
    if path.place("exception", "traceback") is not None:
        return (
            "drop each exception once it is handled, or keep str(error) alone: its traceback keeps "
            "the variables of every function it went through"
        )
    cache = path.first("cache")
    if cache is not None and cache.limit is None and "lru_cache" in cache.text:
        name = cache.text.partition(" (")[0]
        return f"give the cache of {name}() a maxsize, or call {name}.cache_clear()"
    place = path.place("hook")
    # a hook that adds to a list is registered once
    if place is not None and path.grows(place + 1) is None:
        hook = path.references[place]
        if hook.length is None or hook.length >= path.facts.steps:
            call = "call remove() on the handle that registering returns"
            return f"register the {hook.text} once, or {call}"
    queue = path.first("queue")
    if queue is not None and queue.limit is None:
        bound = (
            "use queue.Queue(maxsize=...)" if queue.text == "SimpleQueue" else "give it a maxsize"
        )
        return f"consume what is put into the queue, or {bound}"
    return None


def _optimizer(path: _Path) -> str | None:
    for at, each in enumerate(path.references):
        is_groups = each.text.endswith(".param_groups (attribute)")
        if not is_groups and each.kind != "optimizer state":
            continue
        if path.grows(0, at) is not None:
            return "make the optimizer once, before the loop: every one made is kept"
        if is_groups and path.grows() == at + 1:
            return "call add_param_group() once, not in each step"
        if not is_groups:
            return "make the parameters once: the optimizer keeps the state of replaced ones"
    is_of_keras = path.facts.role == "optimizer" and path.facts.words is not TORCH
    if is_of_keras and any(map(path.may_grow, path.references)):
        return "make the optimizer once, before the loop: every one made is kept"
    return None


def _default(path: _Path) -> str | None:
    place = path.place("default")
    if place is None or path.grows() != place + 1:
        return None
    call = path.references[place].text.removesuffix(" (default)").replace("...", "None")
    return f"write {call} and make the container in the call: a default value is made only once"


def _graph(path: _Path) -> str | None:
    """Return the advice on a tensor that has a graph below it, or is in one."""
    example = path.example
    inside = path.place(*_OF_GRAPH)
    if inside is None and example.grad_fn is None:
        return None
    above = whole = path.references[:inside]
    # the parts of a state go with its variable
    while len(above) > 1 and above[-1].text.startswith("tuple["):
        above = above[:-1]
    carried = None if path.facts.is_replaced else path.facts.carried
    if carried is not None and len(above) == 1 and name_of(above[0]) == carried:
        return _detach(carried, is_whole=above == whole)
    if carried is not None and above and above[-1].kind == "attribute":
        if "." in carried and name_of(above[-1]).rpartition(".")[2] == carried.rpartition(".")[2]:
            return _detach(carried, is_whole=True)
    if inside is None and not example.below:
        return _number(path)
    if not above:
        return None
    if above[-1].text == "grad":
        return "set .grad to None after use: gradients made with create_graph=True keep a graph"
    name = name_of(above[-1])
    if len(above) == 1 and above[0].kind in _VARIABLES:
        # a variable carried beside the one that holds the graph may be a tuple
        is_whole = above == whole and path.facts.carried in (None, name)
        return _detach(path.facts.carried or name, is_whole=is_whole)
    # if bytes are below the example, all else hangs below it
    if _is_number(example) and (inside is None or example.below):
        return _store(path, above[-1])
    if inside is None:
        calls = f"{name}.detach(), or compute it under torch.no_grad()"
    else:
        calls = f"{name}.detach(), or {name}.item() of a number"
    return f"keep {calls}: its grad_fn keeps the graph of its step"


def _detach(name: str, *, is_whole: bool) -> str:
    """Return the advice to detach a variable; ``is_whole`` is false if it may be a tuple."""
    call = f"write {name} = {name}.detach()" if is_whole else f"detach() {name}"
    return f"{call} after each step: {_KEEPS_ALL}"


def _number_without_graph(path: _Path) -> str | None:
    is_result = path.facts.role in ("other", "activation")
    return _number(path) if is_result and path.facts.words.number is not None else None


def _number(path: _Path) -> str | None:
    """Return the advice on single numbers without a graph, or with an emptied one."""
    if not _is_number(path.example) or path.grows() is None:
        return None
    return _store(path, path.references[-1])


def _store(path: _Path, last: Reference) -> str:
    """Return the advice to keep a number in place of a tensor that ``last`` leads to."""
    # a hook does not keep the variable that the line assigns
    made = None if path.place("hook") is not None else path.facts.variable
    name = name_of(last, made or "tensor")
    call = (path.facts.words.number or "{}.item()").format(name)
    graph = ", which keeps the autograd graph of its step" if path.example.grad_fn else ""
    return f"store {call} instead of the tensor{graph}"


def _small_view(path: _Path) -> str | None:
    example = path.example
    if example.nbytes >= _SMALL_VIEW * example.storage_nbytes:
        return None
    shown, storage = format_bytes(example.nbytes), format_bytes(example.storage_nbytes)
    call = "a .copy()" if path.facts.is_in_array else path.facts.words.copy
    if example.grad_fn is not None:
        call = "a .detach().clone()"
    return f"keep {call} of the view: its {shown} keep a storage of {storage}"


def _larger(path: _Path) -> str | None:
    """Return the advice on a tensor that a larger one replaces: ``x = torch.cat([x, new])``."""
    if path.grows() is not None:
        return None
    name, cat = name_of(path.references[-1], "the tensor"), path.facts.words.concatenation
    return (
        f"cap the size of {name}, which {cat} replaces by a larger tensor in each step: keep only "
        "its latest part, or write into a tensor of fixed size"
    )


def _container(path: _Path) -> str | None:
    place = path.grows()
    if place is None:
        return None
    kind = re.split(r"[\[{]", path.references[place].text, maxsplit=1)[0]
    name = name_of(path.references[place - 1], "") if place else ""
    how = ": deque(maxlen=...)" if kind in ("list", "deque") else ""
    return f"clear {name or 'the ' + kind} when it is no longer needed, or cap its size{how}"


def _is_last(item: Reference) -> bool:
    return item.text.endswith(f"[{(item.length or 0) - 1}]")


def _is_number(example: Example) -> bool:
    return math.prod(example.shape) == 1


def name_of(reference: Reference, unknown: str = "tensor") -> str:
    """Return the name of an object in a reference: ``loss`` of ``dict['loss']``."""
    key = re.fullmatch(r".*\['(\w+)'\]", reference.text)
    if key is not None:
        return key[1]
    found = _VARIABLE.fullmatch(reference.text)
    return found["name"] if found is not None else unknown
