"""Suggestions that save most at the peak, from one recording of a program's steps.

The program's steps are recorded in a process of its own, and each change that might help is tried
on the recording (:mod:`.recorded_steps`): which blocks of memory would die earlier, come again or
never be there, and what the highest instant of all would be then. The candidates are
:mod:`.checkpoints`, :mod:`.recomputation`, :mod:`.late_frees` and :mod:`.state`; what a recording
cannot tell is simulated (:mod:`.verification`). No module here imports a framework.
"""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "checkpoints": (),
        "recorded_steps": ("RecordedSteps", "Replay"),
        "repeated_blocks": ("Call", "repeated_paths"),
        "result": ("Method", "Suggestion"),
        "second_forward": ("keep_inputs",),
        "state": ("queue_change",),
        "verification": ("verified",),
    },
)
