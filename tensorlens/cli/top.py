"""``tensorlens top``: a job that runs, live in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tensorlens.cli.options import add_json
from tensorlens.cli.output import say, show
from tensorlens.errors import TensorlensError, UsageError
from tensorlens.live.client import ProcessEnded, ServedProcess, only_one
from tensorlens.live.protocol import Ask
from tensorlens.live.view import ProcessView
from tensorlens.render.text import TextRenderer
from tensorlens.streams import for_stream, is_terminal

_KEYS = "q quit  s sort  t snapshot  r record"
_STEPS = 3
"""Steps that ``r`` records without a number."""
_LOOKS = 4
"""Looks in one interval, where the output is no screen."""
_SHORTEST, _LONGEST = 0.05, 30.0
"""Seconds of an interval."""
_EPILOG = """\
The job is started with TENSORLENS_LIVE=1 in its environment, and imports
tensorlens (or is run by tensorlens run):

  TENSORLENS_LIVE=1 python train.py &
  tensorlens top $!

It then listens on a Unix socket in a folder that its user alone can enter, and
on nothing else. From Python 3.14 on, a job that was not prepared can be
watched, too.

keys: q quits; s sorts the lines by bytes now, by the most seen, by blocks;
t writes a snapshot; r records the next three steps (5r: five; r again: ends);
the space bar looks at the tensors now. The job writes the files, into the
folder that top was called in.

A look at the tensors stops the job for as long as is shown at most. Unasked,
no more than a fiftieth of the time goes into such looks.
"""


def add_top(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "top",
        description="Watch a job that runs: allocated and peak over time, by role, the lines that\n"
        "hold most, the largest tensors.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "pid",
        metavar="PID",
        nargs="?",
        type=int,
        help="the process; where only one can be watched, that one",
    )
    parser.add_argument(
        "-i", "--interval", metavar="SECONDS", type=float, default=1.0, help="1 unless told"
    )
    parser.add_argument(
        "--once", action="store_true", help="print what one interval shows, and end"
    )
    add_json(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Show the process until it ends or the user has seen enough; return 0.

    Raises:
        TensorlensError: it cannot be watched.
    """
    if not _SHORTEST <= args.interval <= _LONGEST:
        raise UsageError(f"--interval {args.interval:g}: give seconds, {_SHORTEST} to {_LONGEST:g}")
    pid = only_one() if args.pid is None else args.pid
    screen = None if args.once or args.json or not _is_screen() else _Screen()
    process = ServedProcess(pid)
    view = ProcessView(process)
    try:
        view.look(census=screen is not None)
        if screen is None:
            for left in reversed(range(_LOOKS)):
                time.sleep(args.interval / _LOOKS)
                view.look(census=not left)
            document = f"{json.dumps(view.to_dict())}\n"
            show(document if args.json else view.text(TextRenderer(), None))
        else:
            _watch(process, view, screen, args.interval)
    except ProcessEnded as ended:
        if screen is None:
            raise
        # the screen is gone with all that it showed
        show(view.text(TextRenderer(), None))
        say(f"{ended}{view.recorded()}")
    finally:
        process.close()
    return 0


def _is_screen() -> bool:
    return is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"


def _watch(process: ServedProcess, view: ProcessView, screen: _Screen, interval: float) -> None:
    """Show the process until it ends or ``q`` or Ctrl-C is pressed."""
    keys = _Keys(process, view)
    with _pressed() as pressed, screen, contextlib.suppress(KeyboardInterrupt):
        while True:
            screen.draw(view)
            deadline = time.monotonic() + interval
            while (left := deadline - time.monotonic()) > 0:
                key = pressed(left)
                if key == "q":
                    return
                if key:
                    keys.take(key)
                    screen.draw(view)
            view.look()


class _Screen:
    """The terminal, as long as the process is shown.

    Raises:
        TensorlensError: what draws on it is not installed.
    """

    def __init__(self) -> None:
        try:
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text
        except ImportError:
            raise TensorlensError(
                "it needs rich: pip install 'tensorlens[top]'; --once does without"
            ) from None
        self._read = Text.from_ansi
        self._live = Live(console=Console(), screen=True, auto_refresh=False)

    def draw(self, view: ProcessView) -> None:
        """Show what was seen last."""
        width, height = shutil.get_terminal_size()
        text = view.text(TextRenderer(width), height, _KEYS)
        shown = self._read(for_stream(text, sys.stdout), no_wrap=True, overflow="crop")
        self._live.update(shown, refresh=True)

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *error: object) -> None:
        self._live.stop()


class _Keys:
    """Handler of pressed keys; the result is the view's message."""

    def __init__(self, process: ServedProcess, view: ProcessView) -> None:
        self._process, self._view = process, view
        self._typed = ""
        """The number before ``r``."""

    def take(self, key: str) -> None:
        """Handle a key."""
        self._typed = (self._typed + key)[-4:] if key.isdigit() else self._typed
        self._view.message = f"{self._typed} steps: r records them" if self._typed else ""
        try:
            if key == "s":
                self._view.sort_on()
            elif key == " ":
                self._view.look(census=True)
            elif key == "t":
                file = _free_name(f"snapshot-{self._process.pid}", "json")
                self._view.message = self._process.ask(Ask.SNAPSHOT, file=file)["text"]
            elif key == "r":
                steps = 0 if self._view.is_recording else int(self._typed or _STEPS)
                file = _free_name(f"recording-{self._process.pid}", "tlens")
                self._process.ask(Ask.RECORD, steps=steps, file=file)
                # the press that ends a recording keeps the file of the first press
                self._view.recording_file = file if steps else self._view.recording_file
                self._view.message = ""
        except ProcessEnded:
            raise
        except TensorlensError as error:
            self._view.message = str(error)
        if not key.isdigit():
            self._typed = ""


def _free_name(start: str, ending: str) -> str:
    """Return the absolute path of a file that does not exist, in the folder we are in."""
    names = (f"{start}.{ending}", *(f"{start}.{number}.{ending}" for number in range(2, 10_000)))
    return str(next(path for path in map(Path.absolute, map(Path, names)) if not path.exists()))


@contextlib.contextmanager
def _pressed() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits some seconds for a key; it returns ``""`` if none is pressed."""
    if not is_terminal(sys.stdin):
        yield _asleep
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield lambda seconds: _key(terminal, seconds)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _key(terminal: int, seconds: float) -> str:
    ready, _, _ = select.select([terminal], [], [], seconds)
    if not ready:
        return ""
    # the terminal is gone: nobody looks any more
    return os.read(terminal, 1).decode("ascii", "replace") or "q"


def _asleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""
