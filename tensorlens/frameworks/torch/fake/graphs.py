"""CUDA graphs, which a card that is not there does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorlens.frameworks.torch.fake.bindings import Unsupported


def install(warn: Callable[[str], None]) -> None:
    """Refuse graphs by name; run callables that were to be graphed as they are written."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported(
            "CUDA graphs are not simulated: estimate the step without them; a captured graph keeps "
            "the memory of its own pool besides"
        )

    def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
        warn(
            "torch.cuda.make_graphed_callables is not simulated: the functions were run as they "
            "are written; graphs keep the memory of their own pools besides"
        )
        return callables

    cuda: Any = torch.cuda
    cuda.graphs._cuda_isCurrentStreamCapturing = torch._C._cuda_isCurrentStreamCapturing
    cuda.graphs.CUDAGraph.__new__ = refuse
    cuda.graphs.graph.__init__ = refuse
    cuda.graphs.graph_pool_handle = cuda.graph_pool_handle = lambda: (0, 0)
    cuda.graphs.make_graphed_callables = cuda.make_graphed_callables = make_graphed_callables
