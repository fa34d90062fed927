"""Tensors that tensors hold in attributes, and rows in another order than they were read."""

import gc

import torch

import tensorlens
from tensorlens.frameworks.torch import findings


def start(tensor):
    return tensor.untyped_storage().data_ptr()


def named(addresses):
    found = {each.storage: each.name for each in tensorlens.MemReporter().snapshot().tensors}
    return [found[address].partition("kept")[2] for address in addresses]


def test_tensors_in_attributes_of_tensors():
    kept = [{"deep": [torch.zeros(3), torch.nn.Parameter(torch.zeros(4)), torch.zeros(5)]}]
    tensor, parameter, _ = kept[0]["deep"]
    tensor.other, tensor.more = torch.zeros(6), [torch.zeros(7)]
    parameter.mask = torch.zeros(8)
    vars(parameter)["seen"] = torch.zeros(9)
    wanted = [*map(start, (tensor.other, tensor.more[0], parameter.mask, parameter.seen))]
    del tensor, parameter
    suffixes = ["[0].other", "[0].more[0]", "[1].mask", "[1].seen"]
    assert named(wanted) == [f"[0]['deep']{suffix}" for suffix in suffixes]


def test_tensors_in_the_arguments_of_a_call():
    def call(*kept):
        return named([start(kept[0]), start(kept[1][0])])

    # not in the assertion, which would have variables for them
    found = call(torch.zeros(3), [torch.zeros(4)])
    assert found == ["[0]", "[1][0]"]


def test_a_snapshot_is_not_changed_by_the_next():
    kept = [torch.zeros(3), torch.zeros(4)]
    reporter = tensorlens.MemReporter()
    first = reporter.snapshot()
    text = first.to_json()
    kept.pop()
    gc.collect()
    reporter.snapshot()
    assert first.to_json() == text
    assert findings.TensorTable.COLUMNS["nbytes"] == first.tensors.nbytes.typecode
