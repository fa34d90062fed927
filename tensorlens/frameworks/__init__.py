"""Adapters to torch and TensorFlow: they count bytes and name tensors."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "base": (
            "Adapter",
            "CensusRoot",
            "Findings",
            "KeptGraph",
            "RecordOptions",
            "Request",
            "StepFigures",
            "TENSORFLOW",
            "TORCH",
            "UNKNOWN",
        ),
        "compilers": ("NodeFigures", "TracedFigures", "compiler"),
        "registry": ("adapters", "when_imported"),
        "retention": ("Holder", "LeftBlock", "Retained", "Survivor"),
    },
)
