"""``tensorlens.profile``: decorator, decorator with options, and context manager in one."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, TextIO

from tensorlens import config
from tensorlens.errors import UsageError
from tensorlens.frameworks.compilers import compiler
from tensorlens.frameworks.registry import adapters
from tensorlens.guards import guarded, reason
from tensorlens.lines.exit_report import ExitReport, workers_output, write_of_worker
from tensorlens.lines.functions import ProfiledFunction
from tensorlens.lines.profiler import LineProfiler, checked_devices
from tensorlens.lines.report import Ending, LineReport
from tensorlens.lines.results import build_report
from tensorlens.lines.tracing.accounts import Account, Switch
from tensorlens.lines.tracing.activation import Activation
from tensorlens.lines.tracing.engine import Engine, engine
from tensorlens.lines.tracing.tracer import original
from tensorlens.streams import for_stream, write


class ProfiledBlock:
    """A running ``with`` block, or the top level of a module, that is being profiled."""

    def __init__(
        self, engine: Engine, frame: FrameType, function: ProfiledFunction | None = None
    ) -> None:
        self.function = function or _block_entry(frame)
        self._engine = engine
        self._thread = engine.thread()
        self._activation: Activation = engine.trace_running_frame(self.function.account, frame)

    def close(self, frame: FrameType, error: BaseException | None) -> None:
        """End the block and its last line."""
        self._engine.untrace_running_frame(self._activation, self.function.account, frame, error)
        # a block in a generator may end in another thread
        self._engine.disable_for_block(self._thread)


def _block_entry(frame: FrameType, *, whole: bool = False) -> ProfiledFunction:
    """Return the entry of the block that begins; with ``whole``, of all lines of the module."""
    code = original(frame.f_code)
    lines = linecache.getlines(code.co_filename)
    first, last = (1, len(lines)) if whole else _extent(code.co_filename, frame.f_lineno)
    lines = lines[first - 1 : last]
    where = "module" if code.co_name == "<module>" else f"{code.co_qualname}()"
    name = f"top level of {Path(code.co_filename).name}" if whole else f"with block in {where}"
    return ProfiledFunction(
        account=Account(code, Switch()),
        name=name,
        qualname=name,
        module=str(frame.f_globals.get("__name__", "")),
        first_line=first,
        source=tuple(line.rstrip("\r\n") for line in lines),
    )


def _extent(filename: str, lineno: int) -> tuple[int, int]:
    """Return the first and last line of the ``with`` statement around ``lineno``."""
    source = "".join(linecache.getlines(filename))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # notebook magics, or no source at all
        return lineno, lineno
    extents = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, (ast.With, ast.AsyncWith))
        and node.lineno <= lineno <= node.body[0].lineno
    ]
    return max(extents, default=(lineno, lineno))


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one decorated function's report."""

    every: int | None = None
    devices: tuple[str, ...] | None = None
    stream: TextIO | None = None
    if_called: bool = False
    """Whether to leave it out unless it ran: nobody named it."""


class DecoratorProfiler(LineProfiler):
    """The profiler behind the decorators, which prints at exit or every N calls."""

    def __init__(self) -> None:
        super().__init__()
        self._options: dict[int, Options] = {}
        self.exit_report = ExitReport(self.report_at_exit)
        self.accumulates = False
        """Whether figures are kept for the end: ``every`` and blocks print and clear nothing."""
        self.has_printed = False
        self.blocks: dict[tuple[CodeType, str, int], ProfiledFunction] = {}
        """Code, file and line of a block to its entry, if :attr:`accumulates`."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        self._adopted: tuple[ProfiledBlock, FrameType] | None = None

    def decorate(self, function: Any, options: Options) -> Any:
        """Return ``function`` wrapped, with its report's options; itself if that fails."""
        with guarded(f"{getattr(function, '__qualname__', 'an object')} is not profiled"):
            wrapped = self(function)
            for python in self._python_functions(self._measured(function)):
                self._options[id(self._entries[id(original(python.__code__))])] = options
            self.exit_report.install()
            return wrapped
        return function

    def adoptable(self, code: CodeType) -> CodeType:
        """Return the code to execute in place of a module's, for :meth:`adopt` while it runs."""
        with suppress(Exception):
            return engine.tracer.source.exchange(code, lambda each: each is code)
        return code

    def adopt(self, frame: FrameType) -> None:
        """Measure the lines of a running module until :meth:`release`.

        Does nothing before a framework is imported. No failure reaches the program.
        """
        if self._adopted is not None or not adapters():
            return
        with suppress(Exception):
            block = ProfiledBlock(engine, frame, _block_entry(frame, whole=True))
            self._adopted = block, frame
            self._entries[id(block.function.account.code)] = block.function
            self._options[id(block.function)] = Options(if_called=True)

    def release(self, error: BaseException | None = None) -> None:
        """Undo :meth:`adopt` when the module has ended, by ``error`` if given."""
        if self._adopted is None:
            return
        (block, frame), self._adopted = self._adopted, None
        with suppress(Exception):
            block.close(frame, error)
            engine.explain(error)

    def block(self, frame: FrameType) -> ProfiledBlock:
        """Begin a block; :meth:`block_ended` prints its figures."""
        if not self.accumulates:
            return ProfiledBlock(engine, frame)
        # code that is compiled anew each time is equal, except for the file
        code = original(frame.f_code)
        key = code, code.co_filename, frame.f_lineno
        # setdefault: several threads may begin it at once
        known = self.blocks.get(key) or self.blocks.setdefault(key, _block_entry(frame))
        return ProfiledBlock(engine, frame, known)

    def block_ended(self, block: ProfiledBlock, options: Options) -> None:
        """Print the figures of a block."""
        if not self.accumulates:
            self._print([block.function], options)

    def clear(self) -> None:
        """Reset the figures, those of accumulated blocks included."""
        super().clear()
        for each in self.blocks.values():
            each.account.clear()

    def _forked(self) -> None:
        # the engine clears functions and open blocks
        for each in self.blocks.values():
            each.account.clear()
            each.account.cleared = False

    @property
    def ending(self) -> Ending | None:
        """What ended the program early, if anything did."""
        return self.exit_report.ending

    def call_ended(self, entry: ProfiledFunction, error: BaseException | None) -> None:
        """Print the figures of a function with ``every=N`` after N calls, or when it raises."""
        options = self._options.get(id(entry))
        if options is None or options.every is None or self.accumulates:
            return
        account = entry.account
        running = any(account in top.accounts for top in engine.thread().stack)
        if not running and (account.calls >= options.every or error is not None):
            self._print([entry], options)
            account.clear()

    def report_at_exit(self, process: str | None) -> None:
        """Print all unprinted figures; a child process only those of what it ran.

        Under ``tensorlens run -o`` a spawned worker writes them to a file of its own instead.
        """
        output = None if process is None else workers_output()
        if output is not None:
            report = self.result(self.unprinted(process), process)
            if not report.functions or write_of_worker(report, output):
                return
        groups: dict[Options, list[ProfiledFunction]] = {}
        for entry in self.unprinted(process):
            options = self._options.get(id(entry), Options())
            groups.setdefault(replace(options, every=None, if_called=False), []).append(entry)
        for options, entries in groups.items():
            self._print(entries, options, process)

    def unprinted(self, process: str | None) -> list[ProfiledFunction]:
        """Return the entries with figures not printed yet; of a child, those that it ran."""
        unprinted = []
        for entry in (*self.functions, *self.blocks.values()):
            options = self._options.get(id(entry), Options())
            # left by a call that was running when another one cleared the figures
            rest = entry.account.cleared and entry.account.lines
            ran = entry.ran or rest or (entry.was_read and not process)
            if ran or not (options.every or options.if_called or process or entry.is_cleared):
                unprinted.append(entry)
        return unprinted

    def _print(
        self, entries: Iterable[ProfiledFunction], options: Options, process: str | None = None
    ) -> None:
        try:
            self._report(list(entries), options, process)
        except Exception as failure:  # in a call of the program, or at its exit
            with suppress(Exception):
                write(f"tensorlens: no report: {reason(failure)}\n", sys.stderr)

    def _report(
        self, entries: list[ProfiledFunction], options: Options, process: str | None
    ) -> None:
        engine.refresh_counters([entry.account for entry in entries])
        devices = self.devices if options.devices is None else options.devices
        report = build_report(entries, engine.counters, devices, process, self.ending)
        self.has_printed = True
        if not config.prints_tables():
            return
        text = f"{report}\n"
        # a closed pipe or a full disk must not disturb the program
        with suppress(OSError, ValueError):
            stream = _output_stream(options.stream)
            write(for_stream(text, stream), stream)


class Profile:
    """Memory per source line, printed when the program ends.

    ::

        @tensorlens.profile                          # a function or method
        @tensorlens.profile(every=10)                # print fresh figures each 10 calls
        @tensorlens.profile(devices=("cuda:0",))     # only these devices
        model = tensorlens.profile(model)            # an nn.Module instance: its forward
        with tensorlens.profile:                     # the lines of this block

    With ``TENSORLENS=0`` in the environment it returns the function itself.

    Args:
        function: what to profile; left out, a decorator with the options is returned.
        every: print and start afresh after this many calls, and when the function raises; with
            ``tensorlens run -o`` or ``--json`` figures add up for the document instead.
        devices: device names to report on; all that are used by default.
        stream: where to print; ``sys.stdout`` by default.
        columns: accepted for compatibility with pytorch_memlab and ignored.

    Raises:
        ProfileError: the object has no Python lines.
        DeviceError: one of the devices surely does not exist.
        UsageError: ``every`` is not a positive whole number.
    """

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or Options()
        self._open: list[tuple[int, int, ProfiledBlock | None]] = []
        """Identities of frame and thread of each open block, and the block."""

    @property
    def profiler(self) -> DecoratorProfiler:
        """The profiler of all decorated functions."""
        return _profiler_of_all()

    def __call__(
        self,
        function: Any = None,
        columns: Any = None,
        *,
        every: int | None = None,
        devices: Sequence[Any] | None = None,
        stream: TextIO | None = None,
    ) -> Any:
        """See the class."""
        if every is not None and (type(every) is not int or every < 1):
            raise UsageError(f"every={every!r}: give a whole number of calls, 1 or more")
        if stream is not None and not callable(getattr(stream, "write", None)):
            raise UsageError(f"stream={stream!r}: give an open text file, such as sys.stderr")
        if not config.enabled():
            return self if function is None else function
        options = Options(every, checked_devices(devices), stream)
        if options == Options():
            options = self._options
        if function is None:
            return Profile(options)
        return self.profiler.decorate(function, options)

    def result(self) -> LineReport:
        """Return the figures of the decorated functions so far."""
        return self.profiler.result()

    def clear(self) -> None:
        """Reset the figures."""
        self.profiler.clear()

    def __enter__(self) -> ProfiledBlock | None:
        block = None
        with guarded("a block is not profiled"):
            # a block that only builds a graph is not measured
            if config.enabled() and not compiler.is_building():
                block = self.profiler.block(sys._getframe(1))
        self._open.append((id(sys._getframe(1)), threading.get_ident(), block))
        return block

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        frame = sys._getframe(1)
        block = self._last_open(frame)
        if block is not None:
            with guarded("a block was not profiled to its end"):
                block.close(frame, error)
            engine.explain(error)
            self.profiler.block_ended(block, self._options)

    def _last_open(self, frame: FrameType) -> ProfiledBlock | None:
        """Remove the last open block of the frame, or else of the thread: an ExitStack's."""
        for at, key in ((0, id(frame)), (1, threading.get_ident())):
            for each in reversed([*self._open]):
                if each[at] == key:
                    self._open.remove(each)
                    return each[2]
        return None


@functools.cache
def _profiler_of_all() -> DecoratorProfiler:
    profiler = DecoratorProfiler()
    profiler.devices = checked_devices(config.current().devices)
    return profiler


def _output_stream(given: TextIO | None) -> TextIO | None:
    if given is not None:
        return given
    stream: TextIO | None = getattr(sys, config.current().stream)
    return stream


profile = Profile()

Decorator = Callable[[Any], Any]


def profile_every(output_interval: int = 1, enable: bool = True, columns: Any = None) -> Decorator:
    """Return a decorator that prints fresh figures each ``output_interval`` calls.

    pytorch_memlab's name for ``profile(every=N)``; ``columns`` is ignored.
    """
    if not enable:
        return lambda function: function
    decorator: Decorator = profile(every=output_interval)
    return decorator


def set_target_gpu(gpu_id: Any) -> None:
    """Report only on one GPU from now on: an index, a name or a ``torch.device``.

    pytorch_memlab's name for the ``devices`` option.

    Raises:
        DeviceError: it surely does not exist.
    """
    profile.profiler.devices = checked_devices((gpu_id,))


def clear_global_line_profiler() -> None:
    """Reset the figures of the decorated functions (pytorch_memlab's name)."""
    profile.clear()
