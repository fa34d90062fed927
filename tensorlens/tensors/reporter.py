"""``MemReporter``: what is in memory, by name."""

from __future__ import annotations

import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from tensorlens import ranks
from tensorlens.errors import UsageError
from tensorlens.frameworks.base import Adapter, CensusRoot
from tensorlens.frameworks.queues.detection import with_queued_input
from tensorlens.frameworks.registry import adapters, ask, device_name, why_unusable
from tensorlens.interpreter import reentrant_lock
from tensorlens.records.tensors import TensorTable
from tensorlens.render.shown import View
from tensorlens.roles import ROLES
from tensorlens.tensors.difference import Difference
from tensorlens.tensors.merged_census import census
from tensorlens.tensors.snapshot import Snapshot
from tensorlens.units import parse_bytes

_PLAIN = (
    *(int, float, complex, str, bytes, bool, range),
    *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType),
)


class MemReporter:
    """Reports what is in memory: every live tensor by name, and a ledger that balances.

    Args:
        roots: models and optimizers, or lists and dicts of them. Parameters are named by their
            path in the model, an optimizer's state as ``Adam.fc1.weight.exp_avg``.
        model: the first of ``roots``.
        optimizer: the last of ``roots``.
        named: more objects, with the names to call them by: ``ema=ema_model``.

    All live tensors are reported, whether or not they belong to one of these. Models and other
    objects are not kept alive; plain lists and dicts are, as they allow no weak reference. While
    a reporter lives, the line that allocates a tensor is noted.

    Raises:
        UsageError: an argument is nothing that holds tensors.
    """

    _called = "MemReporter"
    """Name of the call that takes the roots, for errors."""

    def __init__(self, *roots: Any, model: Any = None, optimizer: Any = None, **named: Any) -> None:
        self._roots: list[tuple[Callable[[], Any], str | None]] = []
        self._last: Snapshot | None = None
        self._lock = reentrant_lock()
        self._watched: list[Adapter] = []
        for root in (model, *roots, optimizer):
            if root is not None:
                self._take(root, None)
        self.add(**named)
        self._watch()

    def add(self, **named: Any) -> MemReporter:
        """Add named objects: ``add(cache=kv_cache)``; return the reporter itself.

        Raises:
            UsageError: an argument is nothing that holds tensors.
        """
        for name, item in named.items():
            self._take(item, name)
        return self

    def add_optimizer(self, optimizer: Any) -> None:
        """Add an optimizer; the method has its name from pytorch_memlab."""
        self._take(optimizer, None)

    def snapshot(self) -> Snapshot:
        """Return what is in memory now; prints nothing and keeps no tensor alive."""
        with self._lock:
            self._watch()
            self._last = _snapshot(self.roots())
            return self._last

    def report(
        self,
        verbose: bool = False,
        device: Any = None,
        *,
        top: int | None = 40,
        min_size: int | str = 0,
        roles: str | Iterable[str] = (),
        devices: Any = (),
        explain: bool = False,
        file: TextIO | None = None,
    ) -> Snapshot:
        """Print what is in memory now, and return it.

        Args:
            verbose: also aliases, strides, storages, holders and births.
            device: only this device (pytorch_memlab's name for ``devices``).
            top: number of rows of each device, the largest first; None for all.
            min_size: least size of a tensor in bytes, or as text: ``"1 MiB"``.
            roles: only these: ``parameter buffer gradient optimizer activation input other``.
            devices: only these: ``"cpu"``, ``"cuda:0"``.
            explain: explain each figure of the ledger in one line.
            file: stream to print to; standard output by default.

        Raises:
            UsageError: no such role, not a size, or not a number of rows.
            DeviceError: no such device.
        """
        view = View(
            top=_top(top),
            min_size=_size(min_size),
            roles=_roles(roles),
            devices=tuple(
                map(device_name, [*([] if device is None else [device]), *_several(devices)])
            ),
            verbose=verbose,
            explain=explain,
        )
        from tensorlens.render.text import TextRenderer
        from tensorlens.streams import for_stream

        snapshot = self.snapshot()
        target = sys.stdout if file is None else file
        renderer = TextRenderer(encoding=getattr(target, "encoding", None), view=view)
        print(for_stream(renderer.render(snapshot), target), file=target)
        return snapshot

    def diff(self, before: Snapshot | None = None) -> Difference:
        """Return what changed since ``before``, or since this reporter's last snapshot.

        Raises:
            UsageError: there is no earlier snapshot.
        """
        with self._lock:
            earlier = self._last if before is None else before
            if earlier is None:
                raise UsageError(
                    "nothing to compare with: call snapshot() or report() first, or diff(before)"
                )
            if not isinstance(earlier, Snapshot):
                raise UsageError(
                    f"diff() compares with a Snapshot, not with {type(earlier).__name__}"
                )
            return self.snapshot() - earlier

    def _take(self, item: Any, name: str | None) -> None:
        _check(item, self._called)
        if type(item) in (list, tuple, dict) and name is None:
            self._take_all(item)
            return
        self._keep(item, name)

    def _take_all(self, container: Any) -> None:
        """Take the objects in a container, without numbers and other plain values.

        Raises:
            UsageError: it contains nothing else.
        """
        waiting: list[tuple[str | None, Any]] = [(None, container)]
        before, seen = len(self._roots), set()
        refusal: UsageError | None = None
        while waiting:
            name, item = waiting.pop()
            if name is None and type(item) in (list, tuple, dict):
                # a container may contain itself
                if id(item) not in seen:
                    seen.add(id(item))
                    waiting += reversed(_entries(item))
            elif item is not None:
                try:
                    _check(item, self._called)
                    self._keep(item, name)
                except UsageError as error:
                    refusal = refusal or error
        if refusal is not None and len(self._roots) == before:
            raise refusal

    def _keep(self, item: Any, name: str | None) -> None:
        try:
            self._roots.append((weakref.ref(item), name))
        except TypeError:
            self._roots.append((lambda: item, name))

    def roots(self) -> list[CensusRoot]:
        """Return the models and other objects given that are still alive."""
        roots = ((reference(), name) for reference, name in self._roots)
        return [CensusRoot(item, name) for item, name in roots if item is not None]

    def _watch(self) -> None:
        found = adapters()
        # watching starts again for all if one is added; each start is ended
        if found != self._watched:
            self._watched = found
            ask(found, self._watch_one)

    def _watch_one(self, adapter: Adapter) -> None:
        adapter.keep_compilers_out((type(self).snapshot, type(self).report))
        weakref.finalize(self, adapter.watch()).atexit = False


def _snapshot(roots: list[CensusRoot]) -> Snapshot:
    found = adapters()
    if not found:
        notes = ("no framework has been imported", *why_unusable())
        return Snapshot(TensorTable(), {}, process=ranks.label(), notes=notes)
    findings = census(found, roots)
    ledger = with_queued_input(findings.ledger)
    return Snapshot(findings.tensors, ledger, process=ranks.label(), notes=findings.notes)


def _check(item: Any, taker: str) -> None:
    if issubclass(type(item), type):
        # not item.__name__, which its metaclass may answer
        name = type.__getattribute__(item, "__name__")
        raise UsageError(f"{taker} takes {name}() in place of the class {name}")
    if item is None or type(item) in _PLAIN:
        raise UsageError(
            f"{taker} takes models, optimizers and what holds tensors, not {type(item).__name__}"
        )


def _entries(item: Any) -> list[tuple[str | None, Any]]:
    if type(item) is dict:
        return [(str(key), each) for key, each in item.items()]
    return [(None, each) for each in item]


def _several(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    return [value]


def _top(top: Any) -> int | None:
    try:
        return None if top is None else operator.index(top)
    except TypeError:
        raise UsageError(f"top = {top!r}: give the number of rows, or None for all") from None


def _size(size: int | str) -> int:
    if not isinstance(size, (int, str)):
        raise UsageError(f"min_size = {size!r}: give bytes, or a size such as '64 MiB'")
    return parse_bytes(size)


def _roles(roles: str | Iterable[str]) -> tuple[str, ...]:
    try:
        chosen = (roles,) if isinstance(roles, str) else tuple(roles)
    except TypeError:
        raise UsageError(f"no role {roles!r}: the roles are {', '.join(ROLES)}") from None
    for role in chosen:
        if role not in ROLES:
            raise UsageError(f"no role {role!r}: the roles are {', '.join(ROLES)}")
    return chosen
