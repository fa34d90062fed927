"""Records: frozen dataclasses that several rooms share, and what reads them from files."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "documents": ("Document",),
        "events": (
            "ALLOC",
            "Context",
            "DeferredLog",
            "EventLog",
            "FREE",
            "GRAPH_CALL",
            "Label",
            "Mark",
            "OOM",
            "SEGMENT_ALLOC",
            "SEGMENT_FREE",
            "START",
            "Segment",
            "SegmentBlock",
        ),
        "ledger": ("BALANCE", "FIGURES", "Ledger", "Part", "UnnamedBlock"),
        "merging": ("merge_logs",),
        "names": ("Names", "key_text", "readable_name"),
        "oom": ("KeptGraph", "Request"),
        "origin": ("Origin",),
        "queues": ("ObjectContainer", "QueuePart", "QueueWorker"),
        "references": ("Reference", "ReferencePath"),
        "run": ("Run", "current_run"),
        "stacks": ("Frame",),
        "tensors": ("FIELDS", "SourceLine", "TensorTable", "table_rows"),
        "torch_files": ("from_snapshot", "read"),
        "torch_files.sizes": ("Rules",),
        "torch_files.snapshots": ("unpickle",),
    },
)
