"""Memory by source line: tracing, accounting, and the ``@profile`` family."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "counters": ("CounterSlots", "continues"),
        "exit_report": ("write_of_worker",),
        "present.layout": ("Fold", "ShownLine", "devices_of", "layouts"),
        "present.overview": ("overview",),
        "profile": ("Options", "Profile", "ProfiledBlock"),
        "region": ("DeviceLevel", "MeasuredRegion"),
        "report": ("DeviceSource", "Ending", "FunctionLines", "Line", "LineMemory", "ResidentLine"),
        "results": ("build_report",),
        "tracing.activation": (),
        "tracing.engine": ("Engine", "engine"),
        "tracing.instrumentation": (),
        "tracing.tracer": (),
    },
)
