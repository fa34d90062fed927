"""What TensorFlow's kernels on the CPU take for themselves while they run."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.frameworks.tensorflow.estimate.held import Value
from tensorlens.frameworks.tensorflow.estimate.nodes import Node
from tensorlens.frameworks.tensorflow.estimate.scratch import Scratch


def scratch(node: Node, values: Sequence[Value]) -> Sequence[Scratch]:
    """Return what an operation takes besides its results."""
    return ()
