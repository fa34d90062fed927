"""Imports a framework, then forks for each program that a client asks for, until a process ends."""

from __future__ import annotations

import ast
import atexit
import contextlib
import gc
import importlib
import importlib.util
import io
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import NoReturn

# this is a script: its folder is where imports are looked for
from variables import read_at_the_start

ROOT = Path(__file__).parents[2]
GIVEN = dict(
    each.split(b"=", 1) for each in Path("/proc/self/environ").read_bytes().split(b"\0") if each
)
SET = {key: value for key, value in os.environb.items() if key not in GIVEN}
"""What the interpreter has set itself: LC_CTYPE, where there was no locale (PEP 538)."""


class Stash(MetaPathFinder, Loader):
    """Modules that are there as soon as anything imports one of them."""

    def __init__(self, names, roots):
        self._roots = roots
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._specs = {name: module.__spec__ for name, module in self._modules.items()}

    def find_spec(self, fullname, path, target=None):
        own = self._specs.get(fullname)
        if own is None:
            return None
        spec = importlib.util.spec_from_loader(fullname, self, origin=own.origin)
        spec.submodule_search_locations = own.submodule_search_locations
        spec.has_location = own.has_location
        return spec

    def create_module(self, spec):
        return self._modules[spec.name]

    def exec_module(self, module):
        name = module.__spec__.name
        module.__spec__ = self._specs[name]
        module.__loader__ = module.__spec__.loader
        # a framework brings all with it; others come with what is of them
        package = "" if name in self._roots else name.partition(".")[0]
        found = [each for each in self._modules if f"{each}.".startswith(package and f"{package}.")]
        for each in found:
            sys.modules.setdefault(each, self._modules[each])
            if each != name:
                self._specs.pop(each, None)
        self._specs.pop(name)
        if name == "tensorlens" and "TENSORLENS_LIVE" in os.environ:
            # which is looked at once, when it is imported
            importlib.import_module("tensorlens.live").prepare()


def imported(names: list[str], device: bool) -> None:
    """Import modules and put them away again, with all that came with them."""
    before = set(sys.modules)
    if device:
        sys.path.insert(0, str(ROOT))
        from tensorlens.planning.torch import load_library

        load_library()
        sys.path.pop(0)
    for name in names:
        importlib.import_module(name)
    for name in [each for each in sys.modules if each.startswith("tensorlens")]:
        del sys.modules[name]
    import_tensorlens(with_trials="torch._dynamo" in names)
    third = [each for each in sys.modules if each not in before and not is_of_python(each)]
    sys.meta_path.insert(0, Stash(third, names))
    # so no fork has reason to look at all objects, whose pages it would have to copy
    gc.collect()
    if names:
        gc.freeze()


def import_tensorlens(with_trials: bool) -> None:
    """Import what needs no framework, and what processes of trials with torch import besides:
    nothing of it does more when it is imported than to define.
    """
    sys.path.insert(0, str(ROOT))
    tensorlens = importlib.import_module("tensorlens")
    for name in tensorlens.__all__:
        getattr(tensorlens, name)
    cli = importlib.import_module("tensorlens.cli")
    for verb in cli.VERBS:
        importlib.import_module(f"tensorlens.cli.{cli.MODULES.get(verb, verb)}")
    importlib.import_module("tensorlens.render.text")
    if with_trials:
        # for programs in modules of tests
        import pytest  # noqa: F401

        from tensorlens.frameworks.torch import recorder  # noqa: F401
        from tensorlens.planning.torch import job, step_watch  # noqa: F401
        from tensorlens.planning.trials import measurement  # noqa: F401
    sys.path.pop(0)


def is_of_python(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


class Program:
    """What a client asks for."""

    def __init__(self, connection: socket.socket) -> None:
        head, self.descriptors, _, _ = socket.recv_fds(connection, 8, 3)
        left, message = int.from_bytes(head, "little"), b""
        try:
            while part := connection.recv(left - len(message)):
                message += part
            given = ast.literal_eval(message.decode())
            self.arguments, self.folder, self.environment, self.ends = given
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            self.let_go()
            raise EOFError("the client has gone") from error

    def let_go(self) -> None:
        """Close what only the program needs."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def is_possible(self) -> bool:
        """Whether a fork of this process is what an interpreter would be."""
        first = self.arguments[0] if self.arguments else "-"
        if first.startswith("-") and first not in ("-c", "-m"):
            return False
        return _at_the_start(self.environment) == _at_the_start(GIVEN)

    def enter(self) -> Callable[[], None]:
        """Become its process; return what runs it."""
        for number, descriptor in enumerate(self.descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(self.folder)
        os.environb.clear()
        os.environb.update({**SET, **self.environment})
        # what was imported may have looked for the folder of another environment
        tempfile.tempdir = None
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        _renew_streams()
        kind, *rest = self.arguments
        sys.orig_argv = [sys.executable, *self.arguments]
        sys.path[:] = [
            *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
            *sys.path[1:],
        ]
        main = ModuleType("__main__")
        main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
        sys.modules["__main__"] = main
        if kind == "-m":
            sys.argv[:] = ["-m", *rest[1:]]
            sys.path.insert(0, self.folder)
            import runpy

            return lambda: runpy._run_module_as_main(rest[0])
        if kind == "-c":
            sys.argv[:] = ["-c", *rest[1:]]
            sys.path.insert(0, "")
            main.__loader__ = importlib.machinery.BuiltinImporter
            source, name = rest[0], "<string>"
        else:
            sys.argv[:] = [kind, *rest]
            sys.path.insert(0, str(Path(kind).resolve().parent))
            main.__file__ = name = str(Path(kind).absolute())
            main.__loader__ = SourceFileLoader("__main__", name)
            main.__cached__ = None
            source = Path(kind).read_bytes()
        return lambda: exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)


def _at_the_start(environment: dict[bytes, bytes]) -> dict[str, str]:
    return read_at_the_start({os.fsdecode(k): os.fsdecode(v) for k, v in environment.items()})


def _renew_streams() -> None:
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    is_buffered = not os.environ.get("PYTHONUNBUFFERED")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        raw = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
        raw.name = f"<{name}>"
        if number == 0:
            buffer = io.BufferedReader(raw)
        else:
            buffer = io.BufferedWriter(raw) if is_buffered else raw
        stream = io.TextIOWrapper(
            buffer,
            encoding or old.encoding,
            old.errors if name == "stderr" else errors or ("strict" if encoding else old.errors),
            newline=None if number == 0 else "\n",
            line_buffering=name == "stderr" or buffer.isatty(),
            write_through=not is_buffered,
        )
        stream.mode = "r" if number == 0 else "w"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def serve(address: str, until: int) -> Program:
    """Answer clients; this returns in the process of a program."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(100)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wakes)
    ending = os.pidfd_open(until)
    selector = selectors.DefaultSelector()
    for each in (ending, woken, listener):
        selector.register(each, selectors.EVENT_READ)
    os.write(1, b"listening\n")
    running: dict[int, socket.socket] = {}
    while True:
        for key, _ in selector.select():
            if key.fd == ending:
                shutil.rmtree(Path(address).parent, ignore_errors=True)
                os._exit(0)
            elif key.fd == woken:
                os.read(woken, 100)
                for pid, status in _ended(running):
                    connection = running.pop(pid)
                    if connection.fileno() < 0:  # its client is gone
                        continue
                    selector.unregister(connection)
                    with contextlib.suppress(OSError), connection:
                        connection.send(str(status).encode())
            elif key.fileobj is listener:
                connection, _ = listener.accept()
                try:
                    program = Program(connection)
                except (OSError, EOFError):
                    connection.close()
                    continue
                if not program.is_possible():
                    with contextlib.suppress(OSError), connection:
                        connection.send(b"fresh")
                    program.let_go()
                    continue
                with contextlib.suppress(OSError):
                    connection.send(b"forks")
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    signal.signal(signal.SIGINT, signal.default_int_handler)
                    selector.close()
                    for each in (ending, woken, wakes):
                        os.close(each)
                    for each in (listener, connection, *running.values()):
                        each.close()
                    return program
                program.let_go()
                running[pid] = connection
                selector.register(connection, selectors.EVENT_READ)
            elif key.fileobj in running.values():  # its program may have ended just now
                _forward(key.fileobj, running, selector)


def _ended(running):
    for pid in [*running]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            yield pid, status


def _forward(connection, running, selector) -> None:
    """Send a program the signals that its client got; one whose client is gone goes, too."""
    (pid,) = (pid for pid, each in running.items() if each is connection)
    try:
        numbers = connection.recv(100)
    except OSError:
        numbers = b""
    for number in numbers or [signal.SIGKILL]:
        os.kill(pid, number)
    if not numbers:
        selector.unregister(connection)
        connection.close()


def run_to_the_end(program: Callable[[], None]) -> None:
    """Run it as an interpreter does, which does the rest when this returns or raises."""
    try:
        program()
    except SystemExit as ending:
        # of a module: whether it was interrupted at its end is looked at there, not after a raise
        if ending.code or sys.orig_argv[1] != "-m":
            raise
    except BaseException as error:
        _tell(error)
        # it has been told; of what kind it is decides about the end
        sys.excepthook = lambda *given: None
        raise


def run(program: Callable[[], None]) -> NoReturn:
    """Run it as an interpreter does, to its exit, but for taking modules apart."""
    status = 0
    try:
        program()
    except SystemExit as ending:
        status = _status(ending.code)
    except BaseException as error:
        _tell(error)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            try:
                stream.flush()
            except OSError:
                status = status or 120
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    # to free all that has been imported would copy every page of it
    os._exit(status & 0xFF)


def _status(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _tell(error: BaseException) -> None:
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    error.__traceback__ = own
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, own
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    sys.excepthook(type(error), error, own)


if __name__ == "__main__":
    address, until, has_device, *names = sys.argv[1:]
    imported(names, device=has_device == "yes")
    program = serve(address, int(until))
    (run_to_the_end if program.ends else run)(program.enter())
