"""The graph of an estimate, against the one that TensorFlow itself dumps of the step."""

import json
import os
import re
import subprocess
import sys

PROGRAM = """
import json

import keras

from tests.tensorflow.estimate_models import batch_for, cnn_2d, loss, lstm, transformer
from tensorlens.frameworks.tensorflow.estimate.asked import Asked
from tensorlens.frameworks.tensorflow.estimate.building import built
from tensorlens.frameworks.tensorflow.estimate.nodes import BACK, sources_of
from tensorlens.frameworks.tensorflow.estimate.optimizing import optimized
from tensorlens.frameworks.tensorflow.estimate.tracing import trace

found = []
for made in (lambda: lstm(3), cnn_2d, lambda: transformer(1)):
    keras.backend.clear_session()
    model, size = made()
    asked = Asked(size, device="cpu", threads=1, optimizer="adam", loss=loss())
    nodes = optimized(trace(model, asked), in_order=False)
    order = built([sources_of(node) for node in nodes], {n.number for n in nodes if n.op in BACK})
    found.append([(nodes[number].name, nodes[number].op) for number in order])
    keras.backend.clear_session()
    model, size = made()
    model.compile("adam", loss())
    model.train_on_batch(*batch_for(model, size))
print(json.dumps(found))
"""
DUMPED = "*_one_step_on_data_*.main.after_graph_optimization.pbtxt"
NODE = re.compile(r'^node \{\n  name: "([^"]+)"\n  op: "([^"]+)"', re.MULTILINE)
COUNTED = re.compile(r"(?<=/_)\d+")
"""In the names of what loops are lowered to: Grappler counts otherwise."""


def listed(nodes):
    """Return the names of all constants, and those of operations in their order."""
    names = [(COUNTED.sub("", name), op) for name, op in nodes if op != "_Arg"]
    constants = {name for name, op in names if op == "Const"}
    return constants, [name for name, op in names if op != "Const"]


def test_what_runs_is_what_tensorflow_makes_of_the_step_in_its_order(tmp_path):
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            "TF_DUMP_GRAPH_PREFIX": str(tmp_path),
            "TF_DUMP_GRAPH_NAME_FILTER": "*",
            "TF_DUMP_GRAPH_GROUPS": "main",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    dumps = sorted(tmp_path.glob(DUMPED), key=lambda path: path.stat().st_mtime_ns)
    for estimated, dumped in zip(json.loads(told.stdout), dumps, strict=True):
        constants, operations = listed(NODE.findall(dumped.read_text()))
        assert len(operations) > 200
        assert listed(estimated) == (constants, operations)
