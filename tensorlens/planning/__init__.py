"""Planning before the run: whether it fits, which option helps, how much input queues hold."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "card": ("DEFAULT", "DeviceSpec", "H100", "find_card"),
        "processes": ("ProgramFailed", "Runner"),
        "step_facts": ("PrefetchQueue", "RepeatedBlock", "StepFacts", "UnusedVariable"),
        "trace": ("Caution", "Formula", "Trace", "caution_scope"),
    },
)
