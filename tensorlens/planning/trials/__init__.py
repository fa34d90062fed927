"""Trials: runs of a program in another process, which begin, step and are measured here.

The built-in options of a framework have folders of their own. Frameworks are imported in functions
alone.
"""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "jobs": (
            "CannotApply",
            "Failure",
            "Job",
            "Measurement",
            "Program",
            "Reason",
            "Variant",
            "catalogue",
        ),
        "loaders_ahead": ("held_ahead",),
    },
)
