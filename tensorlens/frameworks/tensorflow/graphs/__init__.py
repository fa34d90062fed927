"""Nodes of TensorFlow's graphs: which line, layer and forward operation each comes from."""

from tensorlens.frameworks.tensorflow.graphs.calls import follow_calls, not_followed
from tensorlens.frameworks.tensorflow.graphs.functions import Functions
from tensorlens.frameworks.tensorflow.graphs.nodes import NodeOrigin, Nodes

__all__ = ["Functions", "NodeOrigin", "Nodes", "follow_calls", "not_followed"]
