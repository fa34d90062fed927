"""Runs a program in a process of its own: how it begins, steps and is measured.

A framework's built-in options are in a folder of its own; no module here imports a framework.
"""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "jobs": (
            "CannotApply",
            "Choice",
            "Job",
            "Measured",
            "Program",
            "Reason",
            "Trouble",
            "catalogue",
        ),
        "loaders_ahead": ("held_ahead",),
    },
)
