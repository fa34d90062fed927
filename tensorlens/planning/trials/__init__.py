"""Trials: runs of a program in another process, from its begin to the measured steps.

The built-in options of a framework have their own folder. Only functions import frameworks.
"""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "jobs": (
            "CannotApply",
            "Failure",
            "FailureKind",
            "Job",
            "Measurement",
            "Program",
            "Variant",
            "catalogue",
        ),
        "loaders_ahead": ("held_ahead",),
    },
)
