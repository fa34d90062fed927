from tensorlens.frameworks import Holder, LeftBlock, Survivor
from tensorlens.leaks import Span, groups, growth_test

SPAN = Span(made=8, warmup_steps=2)
"""Steps 2 to 6 are judged."""


class Thing:
    """Stands for a tensor."""


def steps(blocks):
    return sorted((block.birth, block.size, block.step) for block in blocks)


def test_different_sizes_are_one_group():
    blocks = [LeftBlock(100 + step, 8 * step, 1, step, 8 * step) for step in range(2, 8)]
    assert steps(groups.candidates(blocks, SPAN)) == [(1, 8 * step, step) for step in range(2, 8)]


def survivor(step, name, tensor=None, holders=()):
    tensors = () if tensor is None else (tensor,)
    return Survivor(100 + step, 16, tensors=tensors, holders=holders, name=name)


def in_groups(survivors, births=None):
    held = [
        LeftBlock(100 + at, 16, 1 if births is None else births[at], at % 8, 16, each)
        for at, each in enumerate(survivors)
    ]
    return groups.groups_of(held, SPAN)


def test_names_with_numbers_are_alike():
    for pattern in ("kept[{}].loss", "net.cache_{}", "kept['step {}']"):
        found = in_groups([survivor(step, pattern.format(step), Thing()) for step in range(8)])
        assert [group.judgement.tensors_per_step for group in found] == [1]


def test_names_that_have_nothing_in_common_are_one_line():
    names = ["last" + ".before" * step + ".value" for step in range(8)]
    found = in_groups([survivor(step, name, Thing()) for step, name in enumerate(names)])
    assert [group.judgement.tensors_per_step for group in found] == [1]


def test_graph_is_counted_with_its_tensor():
    roots = [Thing() for _ in range(8)]
    held = [survivor(step, f"losses[{step}]", root) for step, root in enumerate(roots)]
    below = [survivor(step, "saved", None, (Holder(root, ()),)) for step, root in enumerate(roots)]
    (group,) = in_groups(held + below, [1] * 8 + [2] * 8)
    assert not group.is_below
    assert group.judgement.tensors_per_step == 1


def test_graph_below_a_bounded_tensor_is_one_group():
    total = Thing()
    below = [survivor(step, "saved", None, (Holder(total, ()),)) for step in range(8)]
    (group,) = in_groups(below + below, [1] * 8 + [2] * 8)
    assert group.is_below
    assert group.judgement.tensors_per_step == 2
    assert set(group.births) == {1, 2}


def test_groups_that_together_seem_to_have_ended_stay_apart():
    def group(*made):
        held = [LeftBlock(100 + step, 16, 1, step, 16) for step in made]
        return groups.Group(held, growth_test.judge(groups.left_by_step(held), SPAN))

    several = [group(2, 3, 5), group(2, 4)]
    assert [each.judgement.certainty for each in several] == ["unclear", "unclear"]
    assert growth_test.judge(groups.left_by_step(several[0].held + several[1].held), SPAN) is None
    assert groups.merge_groups(several, ["list", "list"], SPAN) == several
