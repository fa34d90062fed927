"""Counting allocators: what the native parts of all frameworks share, in C++ and in Python."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "counters": (
            "HeapCounter",
            "ResidentCounter",
            "child_processes",
            "forced_source",
            "process_counter",
        ),
        "ledger": ("AllocatorFigures", "balanced", "host_ledger"),
    },
)
