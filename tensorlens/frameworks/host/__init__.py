"""Host memory: what the adapters share to count, record and balance it."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "counters": (
            "HeapCounter",
            "ResidentCounter",
            "forced_source",
            "process_counter",
        ),
        "log_maker": ("name_blocks",),
        "process_memory": ("child_processes",),
        "ledger": ("AllocatorFigures", "balanced", "host_ledger"),
    },
)
