"""TensorFlow's own optimizer of graphs, asked about a machine that needs no session."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from tensorflow.core.protobuf import device_properties_pb2
from tensorflow.python.grappler import cluster, tf_optimizer

HOST = "/job:localhost/replica:0/task:0/device:CPU:0"


def optimize(settings: Any, given: Any) -> Any:
    """Return the graph that Grappler makes of one.

    Args:
        settings: a ``ConfigProto``.
        given: a ``MetaGraphDef``.
    """
    return tf_optimizer.OptimizeGraph(settings, given, verbose=False, cluster=_host())


@cache
def _host() -> Any:
    """Return this machine's CPU: without it each graph starts a session, and says so."""
    # how fast it is decides nothing, but has to be told
    properties = device_properties_pb2.DeviceProperties(
        type="CPU", num_cores=os.cpu_count() or 1, frequency=1000
    )
    device = device_properties_pb2.NamedDevice(name=HOST, properties=properties)
    return cluster.Cluster(devices=[device])
