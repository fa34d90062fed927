"""``LineProfiler``: memory per line of chosen functions."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from types import CodeType, FunctionType, TracebackType
from typing import Any

from tensorlens.errors import ProfileError
from tensorlens.frameworks.registry import device_name
from tensorlens.guards import guarded
from tensorlens.lines.functions import (
    ProfiledFunction,
    build_entry,
    forward_of,
    python_function,
    why_not,
)
from tensorlens.lines.report import Ending, LineReport
from tensorlens.lines.results import build_report
from tensorlens.lines.tracing.accounts import Account, Switch
from tensorlens.lines.tracing.engine import Engine, engine
from tensorlens.lines.tracing.tracer import original
from tensorlens.lines.wrappers import CallScope, WrappingMixin
from tensorlens.recording import oom

_keep_reserve = functools.cache(oom.reserve)


class LineProfiler(WrappingMixin):
    """Memory per line of the functions it is given, for every device in use.

    Use it around the code that calls them::

        with LineProfiler(train, Net.forward) as profiler:
            train()
        print(profiler.result())

    or as a decorator (``profiler(function)`` returns the wrapped function). Functions, methods,
    static and class methods, properties, partials and ``nn.Module`` instances can be given, also
    under ``functools.wraps``, ``torch.no_grad()`` or ``torch.compile``.

    Args:
        functions: what to profile.
        devices: names (``"cpu"``, ``"cuda:1"``) to report on; all that are used by default.
        target_gpu: pytorch_memlab's spelling of ``devices=("cuda:N",)``.

    Raises:
        ProfileError: one of the functions has no Python lines.
        DeviceError: one of the devices surely does not exist.
    """

    def __init__(
        self,
        *functions: Any,
        devices: Sequence[Any] | None = None,
        target_gpu: Any = None,
        engine: Engine = engine,
    ) -> None:
        self._engine = engine
        self._switch = WatchingSwitch(engine)
        self._entries: dict[int, ProfiledFunction] = {}
        """By the ``id()`` of the code object, which the entry keeps alive."""
        if target_gpu is not None:
            devices = (target_gpu,)
        self.devices = checked_devices(devices)
        for function in functions:
            with guarded(f"{getattr(function, '__qualname__', 'an object')} is not profiled"):
                self.add_function(function)
        # never released: our code in a finalizer could swallow a Ctrl-C
        _keep_reserve()

    def add_function(self, function: Any) -> ProfiledFunction:
        """Account for the lines of ``function`` whenever this profiler is on.

        Raises:
            ProfileError: it has no Python lines.
        """
        function = self._measured(function)
        entries = [self._add(function, python) for python in self._python_functions(function)]
        if not entries:
            raise ProfileError(why_not(function))
        return entries[0]

    def __call__(self, function: Any) -> Any:
        """Return ``function`` wrapped so that this profiler is on while it runs.

        A module instance is returned itself, with its ``forward`` wrapped.

        Raises:
            ProfileError: it has no Python lines.
        """
        attribute = forward_of(function)
        if attribute is not None:
            setattr(function, attribute, self(getattr(function, attribute)))
            return function
        known = set(self._entries)
        self.add_function(function)
        try:
            return self.wrap_callable(function)
        except ProfileError:
            for key in set(self._entries) - known:
                del self._entries[key]
            raise

    def call_ended(self, entry: ProfiledFunction, error: BaseException | None) -> None:
        """Take note of the end of a wrapped function's call; does nothing in this class."""

    @property
    def ending(self) -> Ending | None:
        """What ended the program early, if anything did."""
        return None

    def enable_by_count(self) -> None:
        """Switch on in the calling thread; calls nest."""
        self._switch.on()
        enabled = False
        try:
            with guarded("nothing is profiled"):
                self._engine.enable_for_block()
                enabled = True
        finally:
            if not enabled:
                self._switch.off()

    def disable_by_count(self) -> None:
        """Undo one :meth:`enable_by_count`."""
        if self._switch.count:
            self._switch.off()
            with guarded("the profiler did not end as it should"):
                self._engine.disable_for_block()

    enable = enable_by_count
    disable = disable_by_count

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.disable_by_count()
        self._engine.explain(error)

    def result(
        self, functions: Iterable[ProfiledFunction] | None = None, process: str | None = None
    ) -> LineReport:
        """Return the figures so far; the profiler may go on. ``process`` names a child."""
        chosen = list(self.functions if functions is None else functions)
        self._engine.refresh_counters([entry.account for entry in chosen])
        return build_report(chosen, self._engine.counters, self.devices, process, self.ending)

    def print_stats(self, function: Any = None, columns: Any = None, stream: Any = None) -> None:
        """Print the tables (pytorch_memlab's name for it), of one function or of all.

        ``columns`` is accepted for compatibility and ignored.
        """
        print(self._result_of(function), file=stream or sys.stdout)

    def display(self, function: Any = None, columns: Any = None) -> LineReport:
        """Return the report for a notebook to show (pytorch_memlab's name for it).

        ``columns`` is accepted for compatibility and ignored.
        """
        return self._result_of(function)

    def _result_of(self, function: Any) -> LineReport:
        if function is None:
            return self.result()
        codes = {id(original(python.__code__)) for python in self._python_functions(function)}
        return self.result([entry for key, entry in self._entries.items() if key in codes])

    def exchange(self, code: CodeType) -> CodeType:
        """Return the code to execute in place of ``code``, which defines profiled functions."""
        wanted = self._entries.keys()
        return self._engine.tracer.source.exchange(code, lambda each: id(each) in wanted)

    def clear(self) -> None:
        """Reset the figures and keep the functions."""
        for entry in self.functions:
            entry.account.clear()

    def close(self) -> None:
        """Stop watching the functions; wrapped ones run on unmeasured."""
        for entry in self._entries.values():
            if not self._switch.remove(entry.account):
                self._engine.unwatch(entry.account)

    @property
    def functions(self) -> tuple[ProfiledFunction, ...]:
        """The functions in the order they were added."""
        return tuple(self._entries.values())

    def _measured(self, item: Any) -> Any:
        attribute = forward_of(item)
        return item if attribute is None else getattr(item, attribute)

    def _python_functions(self, item: Any) -> list[Any]:
        if isinstance(item, type):
            raise ProfileError(why_not(item))
        try:
            parts = self.get_underlying_functions(item)
        except TypeError:
            raise ProfileError(why_not(item)) from None
        return [python_function(part) for part in parts]

    def _add(self, item: Any, function: Any) -> ProfiledFunction:
        code = original(function.__code__)
        entry = self._entries.get(id(code))
        if entry is None:
            account = Account(code, self._switch)
            entry = build_entry(item, function, account)
            # if it fails, each call tries again and notes why it is not measured
            with guarded("the counters are not in place"):
                self._engine.refresh_counters()
            self._switch.add(account, None if entry.compiler else function)
            self._entries[id(code)] = entry
        return entry

    def _region(self, function: Any) -> CallScope:
        inner = python_function(function)
        entry = self._entries[id(original(inner.__code__))]
        if entry.wrapped is None:
            # a function that another decorator calls cannot be exchanged by our wrapper
            entry.wrapped = function is inner or entry.compiler is not None
            if entry.wrapped:
                self._switch.remove(entry.account)
                self._engine.watch(entry.account)
        return CallScope(self._engine, self._switch, entry, self.call_ended)


class WatchingSwitch(Switch):
    """Switch that watches functions without a wrapper only while it is on.

    After a ``with`` block has ended, they run at full speed again.
    """

    __slots__ = ("_engine", "_functions")

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._functions: list[tuple[Account, FunctionType | None]] = []

    def __reduce__(self) -> tuple[type[Switch], tuple[()]]:
        return Switch, ()

    def add(self, account: Account, function: FunctionType | None) -> None:
        """Watch ``account`` while the switch is on, wherever ``function`` is called."""
        with self._engine.lock:
            if self.count:
                self._engine.watch(account, function)
            self._functions.append((account, function))

    def remove(self, account: Account) -> bool:
        """Stop watching ``account``; return whether it was watched by this switch."""
        with self._engine.lock:
            watched = [each for each in self._functions if each[0] is account]
            for each in watched:
                self._functions.remove(each)
                if self.count:
                    self._engine.unwatch(*each)
        return bool(watched)

    def on(self) -> None:
        """Switch on; calls nest."""
        with self._engine.lock:
            if not self.count:
                for account, function in self._functions:
                    self._engine.watch(account, function)
            self.count += 1

    def off(self) -> None:
        """Undo one :meth:`on`."""
        with self._engine.lock:
            self.count -= 1
            if not self.count:
                for account, function in self._functions:
                    self._engine.unwatch(account, function)


def checked_devices(devices: Sequence[Any] | None) -> tuple[str, ...] | None:
    """Return the devices' names in torch's spelling.

    Raises:
        DeviceError: one of them surely does not exist here.
    """
    if devices is None:
        return None
    several = not isinstance(devices, str) and isinstance(devices, Iterable)
    given = list(devices) if several else [devices]
    return tuple(map(device_name, given))
