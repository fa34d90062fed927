"""Failed allocations are explained on their way out of a profiled region."""

from __future__ import annotations

from tensorlens.lines.engine import Engine


def explain(error: BaseException | None, engine: Engine) -> None:
    """Add to ``error`` what a person needs to know of it, if memory has run out.

    In the outermost region of a thread alone: one further in may be in code that handles it.
    """
    if isinstance(error, MemoryError | RuntimeError | ExceptionGroup) or (
        isinstance(error, Exception) and error.__cause__ is not None
    ):
        if not engine.threads.current().stack:
            from tensorlens.capture.oom import annotate

            annotate(error)
