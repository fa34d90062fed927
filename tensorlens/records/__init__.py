"""Records: frozen dataclasses that several rooms share, and what reads them from files."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "documents": ("Document",),
        "ledger": ("BALANCE", "FIGURES", "Ledger", "Part", "UnnamedBlock"),
        "logs.events": (
            "ALLOC",
            "Context",
            "DeferredLog",
            "EventLog",
            "FREE",
            "GRAPH_CALL",
            "Label",
            "Mark",
            "OOM",
            "Origin",
            "SEGMENT_ALLOC",
            "SEGMENT_FREE",
            "START",
            "Segment",
            "SegmentBlock",
        ),
        "logs.merging": ("merge_logs",),
        "logs.stacks": ("Frame",),
        "names": ("Names", "key_text", "readable_name"),
        "queues": ("ObjectContainer", "QueuePart", "QueueWorker"),
        "references": ("Reference", "ReferencePath"),
        "run": ("Run", "current_run"),
        "tensors": ("FIELDS", "SourceLine", "TensorTable", "table_rows"),
        "torch_files": ("from_snapshot", "read"),
        "torch_files.sizes": ("Rules", "segment_size"),
        "torch_files.snapshots": ("unpickle",),
    },
)
