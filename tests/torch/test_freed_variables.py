"""A variable that goes where backward begins, as ``del`` would let it go."""

import weakref

import pytest
import torch

from tensorlens.planning import UnusedVariable
from tensorlens.planning.torch import freed_before_backward
from tensorlens.planning.trials import CannotApply


def make_step(seen):
    weight = torch.ones(10, requires_grad=True)

    def step():
        outputs = weight * 2
        kept = torch.ones(3)
        seen[:] = [weakref.ref(outputs), weakref.ref(kept)]
        weight.register_hook(lambda gradient: seen.append([each() is None for each in seen[:2]]))
        loss = outputs.sum()
        loss.backward()
        return loss, kept

    return step


def waiting(line):
    code = make_step([]).__code__
    return UnusedVariable(
        "outputs", code.co_qualname, code.co_filename, code.co_firstlineno + line, 0
    )


def test_it_is_gone_in_backward_and_all_else_is_there():
    seen = []
    step = freed_before_backward(waiting(6), lambda: make_step(seen))
    for _ in range(2):
        loss, kept = step()
        assert loss.item() == 20 and kept.sum() == 3
        assert seen[2] == [True, False]
    # the program's own is as it was
    make_step(seen)()
    assert seen[2] == [False, False]


def test_where_backward_is_called_elsewhere_nothing_is_measured():
    step = freed_before_backward(waiting(5), lambda: make_step([]))
    with pytest.raises(CannotApply, match="was not called from line"):
        step()
