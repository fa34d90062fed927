"""Memory over time: ``record()``, what a recording tells, and failed allocations explained."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "analysis.places": ("Phases", "landmark"),
        "memory_viz": ("synthetic_segments",),
        "moments": ("Resident",),
        "oom.address_reserve": (),
        "oom.annotation": (),
        "oom.failure": (),
        "present.data": (),
        "present.instants": (),
        "present.page": ("heat_files", "picture"),
        "present.page_data": (),
        "present.tables": ("module_rows",),
        "record": ("Recorders", "running"),
    },
)
