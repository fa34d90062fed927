"""A trial estimated: what its step would train is traced, in place of being trained."""

from __future__ import annotations

from tensorlens.frameworks.tensorflow.estimate.training import (
    Training,
    trace_training,
    training_intercepted,
)
from tensorlens.frameworks.tensorflow.options.keras_here import keras
from tensorlens.frameworks.tensorflow.options.program import optioned
from tensorlens.frameworks.trials.caller import restore
from tensorlens.frameworks.trials.jobs import CannotApply, Job
from tensorlens.records.traces import Trace

_OWN_LOOP = (
    "an estimate traces what train_on_batch() or fit() of a compiled Keras model would train, and"
    " the step calls neither; measure it"
)


def trace(job: Job) -> Trace:
    """Return what one train step asks of allocators.

    The program builds its model and its data for real, with the option around it; its step runs to
    where a model would be trained.

    Raises:
        CannotApply: the option, or the step, cannot be estimated.
    """
    keras("an estimate")
    restore(job.program.caller, job.program.carried)
    made = optioned(job, estimated=True)
    step = made.begin()
    if step is None:
        raise CannotApply("an estimate needs a make_step() that returns step()")
    try:
        with training_intercepted():
            step()
    except Training as training:
        wanted = training
    else:
        raise CannotApply(_OWN_LOOP)
    device = "cpu" if job.device == "cpu" else "cuda"
    try:
        return trace_training(wanted, device, job.card)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise CannotApply(f"the train step cannot be traced: {reason}") from error
