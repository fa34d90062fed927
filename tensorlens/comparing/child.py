"""The process that one trial runs in: a trial comes in, messages go out, and it is over."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import threading
from typing import Any, BinaryIO

from tensorlens.frameworks.torch.fake.failing import failure
from tensorlens.frameworks.torch.fake.jobs import Progress
from tensorlens.frameworks.trials import (
    CANNOT,
    FAILED,
    CannotApply,
    Message,
    Trial,
    Trouble,
    run,
)


def serve() -> None:
    """Answer the trial that comes on standard input.

    Answers go to what is standard output; the program has neither of them. The process ends when
    whoever asked is gone.
    """
    source, target = _taken(0, "rb"), _taken(1, "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    trial: Trial = pickle.load(source)
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()
    sys.path[:] = trial.path
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            answer: Message = run(trial, lambda done: _send(target, Progress(done)))
    except CannotApply as error:
        answer = Trouble(CANNOT, str(error))
    except BaseException as error:
        found = failure(error, output.getvalue())
        answer = Trouble(FAILED, found.text, found.details)
    _send(target, answer)
    # what the program leaves running must not keep the process
    os._exit(0)


def _end_with(source: BinaryIO) -> None:
    source.read(1)
    os._exit(1)


def _taken(descriptor: int, mode: str) -> Any:
    return os.fdopen(os.dup(descriptor), mode)


def _send(target: BinaryIO, message: Message) -> None:
    pickle.dump(message, target, protocol=5)
    target.flush()
