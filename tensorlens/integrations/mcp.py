"""A server of the Model Context Protocol, by which coding assistants read saved reports.

``tensorlens mcp`` runs it over standard input and output. It reads files, asks jobs that were
started to be watched, and runs no program.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from tensorlens import __version__
from tensorlens.errors import TensorlensError
from tensorlens.jobs.merge import merged
from tensorlens.live.client import ServedProcess, only_one
from tensorlens.live.view import ProcessView
from tensorlens.loading import load
from tensorlens.render.shown import Shown, View
from tensorlens.render.text import TextRenderer
from tensorlens.tensors.snapshot import Snapshot

MOST_CHARACTERS = 12_000
"""Largest answer: an assistant pays for what it reads."""
_WIDTH = 140
_LONGEST_LOOK = 10.0
_INSTRUCTIONS = """\
Reports on the memory of PyTorch, TensorFlow and Keras programs, exact to the byte. A program makes
them with `tensorlens run -o lines.json train.py` (which line), `run --record run.tlens`
(which moment), `MemReporter(model, optimizer).snapshot().save("tensors.json")` (which tensor),
`tensorlens leaks -o leaks.json train.py` (what grows), `tensorlens estimate train.py:make_step
--card "rtx 3090" -o fits.json` (will it fit), `tensorlens suggest train.py:make_step -o helps.json`
(what helps). `show` answers from each of these files, with the lines of the program. Torch's memory
snapshots (.pickle) are read as recordings, without running code in them. A training that runs with
TENSORLENS_LIVE=1 is looked at by `job`."""


def server() -> MCPServer:
    """Return the server with its tools."""
    made = MCPServer("tensorlens", version=__version__, instructions=_INSTRUCTIONS)
    for tool in (show, diff, ranks, job):
        made.tool()(_answering(tool))
    return made


def _answering(tool: Callable[..., str]) -> Callable[..., str]:
    """Return ``tool``, with errors of tensorlens turned into a :class:`ToolError`."""

    @functools.wraps(tool)
    def run(*arguments: Any, **options: Any) -> str:
        try:
            return tool(*arguments, **options)
        except TensorlensError as error:
            raise ToolError(str(error)) from None

    return run


def show(
    file: str,
    top: int = 15,
    device: str = "",
    role: str = "",
    min_size: int = 0,
    at: str = "",
) -> str:
    """Answer from one saved report: its first lines are the answer, tables follow.

    Args:
        file: a .json or .tlens of tensorlens, or a .pickle of torch's memory history.
        top: how many of the largest rows.
        device: only this one, as in "cuda:0".
        role: only parameter, buffer, gradient, optimizer, activation, input, other or temporary.
        min_size: only rows of at least so many bytes.
        at: of a recording, the instant: the name of a mark or the number of an event; its peak by
            default.
    """
    view = View(
        top=top,
        min_size=min_size,
        roles=tuple(filter(None, [role])),
        devices=tuple(filter(None, [device])),
        at=at or None,
    )
    return _text(load(file), view)


def diff(before: str, after: str, top: int = 15) -> str:
    """Tell what appeared, went and grew between two snapshots, by tensor and line."""
    first, second = load(before), load(after)
    if not isinstance(first, Snapshot) or not isinstance(second, Snapshot):
        raise TensorlensError("diff takes two snapshots; show reads anything else")
    return _text(second - first, View(top=top))


def ranks(files: Sequence[str]) -> str:
    """Compare the ranks of a job, one report of each: which stands out, and by which tensor."""
    return _text(merged({file: load(file) for file in files}), View())


def job(pid: int = 0, seconds: float = 1.0) -> str:
    """Look at a training that runs: levels, roles, the lines that hold most, the largest tensors.

    It was started with TENSORLENS_LIVE=1 in its environment. A look at the tensors stops it for as
    long as the answer says.

    Args:
        pid: the process; 0 is the only one that can be watched.
        seconds: how long lines are followed, at most ten.
    """
    running = ServedProcess(pid or only_one())
    try:
        view = ProcessView(running)
        view.look()
        time.sleep(min(max(seconds, 0.0), _LONGEST_LOOK))
        view.look(census=False)
        return _bounded(view.text(TextRenderer(_WIDTH, "utf-8"), None))
    finally:
        running.close()


def _text(record: Shown, view: View) -> str:
    """Return the text of a report within the bound."""
    return _bounded(TextRenderer(_WIDTH, "utf-8", view, tells_run=True).render(record))


def _bounded(text: str) -> str:
    """Return a text within the bound, cut at the end of a line."""
    if len(text) <= MOST_CHARACTERS:
        return text
    kept = text[:MOST_CHARACTERS].rpartition("\n")[0]
    return f"{kept}\n… {len(text) - len(kept):,} more characters: ask for fewer rows, or one device"


def main() -> None:
    """Serve until the client leaves."""
    server().run("stdio")
