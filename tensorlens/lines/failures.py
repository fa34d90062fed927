"""Failed allocations are explained on their way out of a profiled region."""

from __future__ import annotations

from tensorlens.guards import guarded
from tensorlens.lines.engine import Engine
from tensorlens.recording.oom import region as regions


def explain(error: BaseException | None, engine: Engine) -> None:
    """Add to ``error`` what a person needs to know of it, if memory has run out.

    In the outermost region of a thread alone: one further in may be in code that handles it.
    """
    if error is not None and regions.may_be_out_of_memory(error):
        with guarded("an error is not explained"):
            if not engine.threads.current().stack:
                regions.explain(error)
