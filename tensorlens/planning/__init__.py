"""Planning before the run: whether it will fit, which option helps, what the input queue holds."""

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
