import pytest
from made_logs import ENGINE, Made, user

from tensorlens.records import Context, Frame

FSDP = "/env/site-packages/torch/distributed/fsdp/_fully_shard"
STEP = user(10, "main")
ALLOCATE = Frame(f"{FSDP}/_fsdp_collectives.py", 59, "DefaultAllocMixin.allocate", False)
NODE = Context(op="aten::empty", node="RegisterPostBackwardFunctionBackward")


def fsdp(file: str, function: str) -> Frame:
    return Frame(f"{FSDP}/{file}", 1, function, False)


@pytest.mark.parametrize(
    ("frames", "name", "role"),
    [
        ((fsdp("_fsdp_param.py", "alloc_storage"),), "unsharded parameters", "parameter"),
        (
            (fsdp("_fsdp_collectives.py", "foreach_all_gather"), ALLOCATE),
            "all-gather of parameters",
            "parameter",
        ),
        (
            (fsdp("_fsdp_collectives.py", "foreach_reduce"), ALLOCATE),
            "reduce-scatter of gradients",
            "gradient",
        ),
    ],
)
def test_fully_shard_buffers_in_backward(frames, name, role) -> None:
    made = Made()
    row = made.alloc(64, made.stack(STEP, ENGINE, *frames), NODE)
    (block,) = made.recording.peak().tensors
    assert (block.name, block.role) == (name, role)
    # given back while the same node runs it is no scratch of an operator either
    made.free(row, made.stack(STEP, ENGINE, *frames), NODE)
    (block,) = made.recording.blocks([row])
    assert block.role == role


def test_buckets_of_distributed_data_parallel() -> None:
    ddp = "/env/site-packages/torch/nn/parallel/distributed.py"
    before = Frame(ddp, 1775, "DistributedDataParallel._pre_forward", False)
    made = Made()
    made.alloc(64, made.stack(STEP, "net", before), Context(op="aten::empty"))
    # what it calls is not the reducer's
    made.alloc(8, made.stack(STEP, "net", before, user(5)), Context(op="aten::empty"))
    bucket, other = made.recording.peak().tensors
    assert (bucket.name, bucket.role) == ("net: gradient bucket", "gradient")
    assert (other.name, other.role) == ("net: aten::empty", "activation")


def test_functions_of_the_users_of_the_same_name_are_the_users() -> None:
    made = Made()
    made.alloc(64, made.stack(STEP, Frame("/me/_fsdp_param.py", 3, "alloc_storage")))
    (block,) = made.recording.peak().tensors
    assert block.role == "other"


def test_values_that_keras_makes_for_weights() -> None:
    layer = "/env/site-packages/keras/src/layers/layer.py"
    adds = Frame(layer, 622, "Layer.add_weight", False)
    initializer = Frame("/env/site-packages/keras/src/initializers/random.py", 3, "uniform", False)
    stack, made = (STEP, "dense", Frame(layer, 936, "Layer.__call__", False), adds), Made()
    scratch = made.alloc(64, made.stack(*stack, initializer), Context(op="Mul"))
    made.free(scratch, made.stack(*stack, initializer), Context(op="Mul"))
    kernel = made.alloc(64, made.stack(*stack, initializer), Context(op="AddV2"))
    made.alloc(8, made.stack(*stack[:-1]), Context(op="MatMul"))
    found = made.recording.blocks([scratch, kernel, kernel + 1])
    assert [(block.role, block.name) for block in found] == [
        ("temporary", "dense: initial value of a weight"),
        ("parameter", "dense: initial value of a weight"),
        ("activation", "dense: MatMul"),
    ]
