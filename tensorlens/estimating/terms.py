"""Why memory is there that no tensor of the program is."""

from __future__ import annotations

_WHY = {
    "cuBLAS workspace": (
        "torch keeps one for each thread and stream that multiplies matrices: 8,519,680 B, 32 MiB "
        "from capability 9.0 on (CUDABlas.cpp, CublasHandlePool.cpp)"
    ),
    "cuBLASLt workspace": "as cuBLAS's, where the two do not share one (CUDABlas.cpp)",
    "cuDNN workspace": (
        "the algorithm that cuDNN picks for a convolution takes it while it runs; only the card "
        "tells how much"
    ),
    "cuDNN RNN workspace": "cuDNN takes it while a recurrent network runs; only the card tells",
    "attention workspace": "the kernel of fused attention takes it while it runs (flash_api.cpp)",
    "contiguous copy": "a kernel makes its own copy of an argument whose layout it cannot read",
    "unfolded image": "a convolution without cuDNN unfolds the image into a matrix",
}


def why(name: str) -> str:
    """Return the rule behind a name, in one line."""
    return _WHY.get(name, "a kernel takes it for itself while it runs")
