"""The process that runs steps on fake tensors: jobs come in, traces go out."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import sys
from typing import Any, BinaryIO

from tensorlens.folders import temporary_folder
from tensorlens.frameworks.fake_torch.device.setup import Readiness, prepare
from tensorlens.frameworks.torch.release import check_release
from tensorlens.frameworks.trials.failures import failure
from tensorlens.frameworks.trials.keras_training import check_is_of_torch, traced
from tensorlens.frameworks.trials.protocol import Answer, Job, Progress
from tensorlens.records.cards import H100

_PASSING = (
    *(f"{folder}{os.sep}" for folder in (temporary_folder(),) if folder),
    *(os.devnull, "/dev/", "/proc/"),
)


def serve() -> None:
    """Answer the jobs that come on standard input, until there are no more.

    Answers go to what is standard output; the program has neither of them.
    """
    source, target = _taken(0, "rb"), _taken(1, "wb")
    sys.addaudithook(_watch_files)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    readiness: Readiness | None = None
    while True:
        try:
            job: Job = pickle.load(source)
        except EOFError:
            return
        sys.path[:] = job.path
        output = io.StringIO()
        try:
            if readiness is None:
                readiness = _ready(job)
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                answer = _answer(job, readiness, target)
        except BaseException as error:
            answer = failure(error, output.getvalue())
        _send(target, answer)
        gc.collect()


def _watch_files(event: str, arguments: tuple[Any, ...]) -> None:
    """Tell of files that the program writes: nothing but its tensors is a stand-in."""
    if event != "open" or not isinstance(arguments[0], str):
        return
    path, mode = arguments[0], arguments[1]
    if isinstance(mode, str) and set("wax+") & set(mode):
        cautions = sys.modules.get("tensorlens.frameworks.fake_torch.cautions")
        if cautions is not None and not path.startswith(_PASSING):
            cautions.tell(f"the program wrote {path}: its own files are real")


def _taken(descriptor: int, mode: str) -> Any:
    return os.fdopen(os.dup(descriptor), mode)


def _ready(job: Job) -> Readiness:
    from tensorlens.frameworks.fake_torch.cautions import tell

    check_release()
    if job.device == "cpu":
        readiness = Readiness(False)
    else:
        readiness = prepare(job.devices, job.card or H100, warn=tell)
    from tensorlens.frameworks.fake_torch.device import mode
    from tensorlens.frameworks.fake_torch.memory.temporaries import kernel_overrides as otherwise

    if not readiness.is_ready:
        mode.install()
    otherwise.install()
    return readiness


def _answer(job: Job, readiness: Readiness, target: BinaryIO) -> Answer:
    from tensorlens.frameworks.fake_torch.run import run

    try:
        trace = run(job, readiness, lambda done: _send(target, Progress(done)))
    except BaseException as error:
        card = None if job.device == "cpu" else job.card or H100
        of_keras = traced(error, job.device, card, job.of_keras)
        if of_keras is None:
            raise
        return of_keras
    check_is_of_torch(trace)
    return trace


def _send(target: BinaryIO, answer: Answer) -> None:
    pickle.dump(answer, target, protocol=5)
    target.flush()
