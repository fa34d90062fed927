"""Memory over time: ``record()``, what a recording tells, and failed allocations explained."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "analysis": ("Resident",),
        "analysis.sites": ("Sites", "landmark"),
        "memory_viz": ("synthetic_segments",),
        "oom": (),
        "oom.annotation": (),
        "oom.failure": (),
        "present.data": (),
        "present.moment_layout": (),
        "present.page": ("heat_files", "picture"),
        "present.page_data": (),
        "present.tables": ("module_rows",),
        "record": ("Recorders", "running"),
    },
)
