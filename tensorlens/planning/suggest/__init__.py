"""Suggestions that save most at the peak, from one recording of a program's steps.

The program's steps are recorded in a process of its own. Each change that might help is tried on
the recording (:mod:`.recorded_steps`): which blocks of memory would be freed earlier, allocated
again or never be there, and how high the peak would be then. The candidates come from
:mod:`.checkpoints`, :mod:`.recomputation`, :mod:`.late_frees`, :mod:`.optimizers` and
:mod:`.queues`; what a recording cannot tell is simulated (:mod:`.simulation`). No module here
imports a framework.
"""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "checkpoints": (),
        "recorded_steps": ("RecordedSteps", "Replay"),
        "repeated_blocks": ("Call", "keep_inputs", "repeated_paths"),
        "result": ("Method", "Suggestion"),
        "queues": ("queue_change",),
        "verification": ("verified",),
    },
)
