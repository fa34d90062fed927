"""Changes that lower a program's peak most, found in one recording of its steps.

The steps are recorded in another process. Each possible change is replayed on the recording
(:mod:`.recorded_steps`): blocks of memory are freed earlier, allocated again or removed, which
gives a new peak. The candidates come from :mod:`.checkpoints`, :mod:`.recomputation`,
:mod:`.late_frees`, :mod:`.optimizers` and :mod:`.queues`; changes that a recording cannot predict
are simulated (:mod:`.simulation`). No module here imports a framework.
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
