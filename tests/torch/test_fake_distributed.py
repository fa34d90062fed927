"""One rank of many takes the memory that it takes, with nobody else there."""

import os

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tensorlens.planning.torch import distributed
from tests.torch.fake_stage import staged

WORLD = 4
MIB = 1 << 20
WEIGHTS = 512 * 512 * 4, 512 * 1024 * 4, 1024 * 8 * 4
"""Bytes of the network's weights: 1 MiB, 2 MiB, 32 KiB."""


@pytest.fixture
def stage():
    with staged(lambda: distributed.distributed(WORLD)) as stage:
        dist.init_process_group("nccl", init_method="env://")
        yield stage


def network():
    layers = [nn.Linear(512, 512), nn.Linear(512, 1024), nn.Linear(1024, 8)]
    for layer in layers:
        layer.bias = None
    return nn.Sequential(*layers)


def learn(net):
    net(torch.ones(2, 512)).sum().backward()


def test_fake_world_size(stage):
    assert dist.get_world_size() == WORLD
    assert dist.get_rank() == int(os.environ["RANK"]) == int(os.environ["LOCAL_RANK"]) == 0
    assert "rank 0 of 4" in stage.said[0]
    assert "NCCL" in stage.said[0]
    assert dist.get_world_size(dist.new_group([0, 1], backend="gloo")) == 2


def test_all_is_as_before_afterwards():
    names = "init_process_group", "all_reduce", "Reducer", "new_group"
    before = [getattr(dist, name) for name in names], dict(os.environ)
    with staged(lambda: distributed.distributed(WORLD)):
        dist.init_process_group("gloo")
        assert dist.get_rank() == 0
    assert not dist.is_initialized()
    assert ([getattr(dist, name) for name in names], dict(os.environ)) == before


def test_the_sizes_of_the_program_itself():
    with staged(lambda: distributed.distributed(None)):
        dist.init_process_group("gloo", world_size=3, rank=2)
        assert (dist.get_world_size(), dist.get_rank()) == (3, 2)


def test_a_function_that_an_earlier_run_left_behind_is_of_this_run():
    with staged(lambda: distributed.distributed(2)):
        begin = dist.init_process_group
    with staged(lambda: distributed.distributed(WORLD)) as stage:
        begin("gloo")
        assert dist.get_world_size() == WORLD
        assert "rank 0 of 4" in stage.said[0]


def test_objects_by_the_names_of_their_arguments(stage):
    got = [None]
    dist.scatter_object_list(
        scatter_object_output_list=got, scatter_object_input_list=[*range(7, 7 + WORLD)]
    )
    assert got == [7]


def test_collectives_by_hand(stage):
    x = torch.ones(1000)
    before = stage.allocated()
    whole = torch.empty(WORLD * 1000)
    dist.all_gather_into_tensor(whole, x)
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    part = torch.empty(250)
    dist.reduce_scatter_tensor(part, x)
    dist.all_gather([torch.empty(1000) for _ in range(WORLD)], x)
    dist.broadcast(x, 0)
    dist.barrier()
    assert stage.allocated() - before == (WORLD * 1000 + 250) * 4
    found = [None] * WORLD
    dist.all_gather_object(found, {"loss": 1})
    assert found == [{"loss": 1}] * WORLD


@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"find_unused_parameters": True}])
def test_buckets_are_held_besides_gradients(stage, options):
    before = stage.allocated()
    net = network()
    parameters = sum(WEIGHTS)
    assert stage.allocated() - before == parameters
    parallel = DistributedDataParallel(net, **options)
    assert stage.allocated() - before == 2 * parameters
    for _ in range(3):
        learn(parallel)
        assert stage.allocated() - before == 3 * parameters
        net.zero_grad()
        assert stage.allocated() - before == 2 * parameters


def test_gradients_as_views_of_buckets(stage):
    before = stage.allocated()
    net = network()
    parallel = DistributedDataParallel(net, gradient_as_bucket_view=True)
    for _ in range(3):
        learn(parallel)
        assert stage.allocated() - before == 2 * sum(WEIGHTS)


def test_unused_parameters_and_no_sync(stage):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    net = Half()
    parallel = DistributedDataParallel(net, find_unused_parameters=True)
    for _ in range(2):
        parallel(torch.ones(2, 4)).sum().backward()
    with parallel.no_sync():
        parallel(torch.ones(2, 4)).sum().backward()
    assert net.used.weight.grad is not None
    assert net.unused.weight.grad is None


def test_communication_hook_is_noted(stage):
    DistributedDataParallel(network()).register_comm_hook(None, lambda state, bucket: None)
    assert stage.said[-1].startswith("a communication hook of DistributedDataParallel was not run")


@pytest.fixture
def mesh(stage):
    # holds the numbers of the ranks, so it is made before anything is counted
    return dist.device_mesh.init_device_mesh("cpu", (WORLD,))


def shard(net, mesh, **options):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    return fsdp.fully_shard(net, mesh=mesh, **options)


def test_fully_sharded_estimate(stage, mesh):
    before = stage.allocated()
    net = network()
    for layer in net:
        shard(layer, mesh)
    shard(net, mesh)
    parameters = sum(WEIGHTS) // WORLD
    assert stage.allocated() - before == parameters
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        learn(net)
        optimizer.step()
        # parameters, gradients and two moments, and a step counter of 4 bytes for each
        assert stage.allocated() - before == 4 * parameters + 3 * 4
        optimizer.zero_grad()
    assert stage.allocated() - before == 3 * parameters + 3 * 4


@pytest.mark.parametrize(
    ("reduced", "held"),
    [
        # in forward: the shard, what was gathered, and the weight copied out of it
        (False, MIB // WORLD + MIB + MIB),
        # the same gathered in bfloat16
        (True, MIB // WORLD + MIB // 2 + MIB // 2),
    ],
)
def test_fully_sharded_in_forward(stage, mesh, reduced, held):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    options = {}
    if reduced:
        options["mp_policy"] = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    before = stage.allocated()
    found = []

    class Layer(nn.Linear):
        def forward(self, x):
            found.append(stage.allocated() - before - x.nbytes)
            return super().forward(x)

    net = shard(Layer(512, 512, bias=False), mesh, **options)
    x = torch.ones(2, 512, dtype=torch.bfloat16 if reduced else torch.float32)
    net(x)
    assert found == [held]


def test_tensor_parallel_estimate(stage, mesh):
    parallel = pytest.importorskip("torch.distributed.tensor.parallel")
    before = stage.allocated()
    net = nn.Sequential(
        nn.Linear(512, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 512, bias=False)
    )
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    net = parallel.parallelize_module(net, mesh, plan)
    assert stage.allocated() - before == 4 * MIB // WORLD
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        learn(net)
        optimizer.step()
        optimizer.zero_grad()
    assert stage.allocated() - before == 3 * MIB + 2 * 4


def test_random_values_of_sharded_tensors(stage, mesh):
    with torch.device("meta"):
        net = network()
    for layer in net:
        shard(layer, mesh)
    net.to_empty(device="cpu")
    for layer in net:
        nn.init.normal_(layer.weight)
    learn(net)


def test_compiled_models_run_eagerly():
    with staged() as stage:
        net = torch.compile(nn.Linear(3, 4), mode="max-autotune")
        net(torch.ones(2, 3)).sum().backward()
        assert [*net.state_dict()] == ["weight", "bias"]
        assert net._orig_mod is net

        @torch.compile(fullgraph=True)
        def double(x):
            return x * 2

        assert double(torch.ones(3)).shape == (3,)
        scripted = torch.jit.script(nn.Linear(3, 4))
        assert torch.jit.trace(scripted, torch.ones(2, 3))(torch.ones(2, 3)).shape == (2, 4)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = torch.ones(3) * 2
        graph.replay()
        assert result.shape == (3,)
    said = list(dict.fromkeys(text.partition(" was not")[0] for text in stage.said))
    assert said == ["torch.compile", "torch.jit", "a CUDA graph"]
