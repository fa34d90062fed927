"""The layout of a treemap: every box has its area, and none covers another."""

import pytest

from tensorlens.render import TREEMAP_HEIGHT, TREEMAP_WIDTH, Box, Treemap, rectangles


def treemap(*groups: tuple[int, ...]) -> Treemap:
    boxes = [tuple(Box(str(each), "", each, "red") for each in group) for group in groups]
    made = (Box("group", "", sum(b.nbytes for b in each), "red", "", each) for each in boxes)
    return Treemap("", tuple(made))


SHAPES = {
    "one": ((5,),),
    "equal": ((1, 1, 1, 1),),
    "uneven": ((1000, 1, 1), (1,), (300, 200, 100, 50, 25)),
    "many": (tuple(range(1, 120)), tuple(range(1, 50))),
    "huge": ((2**50, 2**49, 1), (2**48,)),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_areas_are_as_the_bytes(kind: str) -> None:
    groups = [each for each in rectangles(treemap(*SHAPES[kind])) if each.is_group]
    whole = sum(map(sum, SHAPES[kind]))
    for each in groups:
        # a box ends a pixel before the next
        area = (each.width * TREEMAP_WIDTH / 100 + 1) * (each.height + 1)
        assert area >= each.box.nbytes / whole * TREEMAP_WIDTH * TREEMAP_HEIGHT * 0.999999
        if each.width and each.height:
            assert area == pytest.approx(each.box.nbytes / whole * TREEMAP_WIDTH * TREEMAP_HEIGHT)


@pytest.mark.parametrize("kind", SHAPES)
def test_no_box_covers_another_or_leaves_the_picture(kind: str) -> None:
    boxes = [each for each in rectangles(treemap(*SHAPES[kind])) if not each.is_group]
    assert len(boxes) == sum(map(len, SHAPES[kind]))
    spans = [(b.x, b.x + b.width, b.y, b.y + b.height) for b in boxes if b.width and b.height]
    for left, right, top, bottom in spans:
        assert (
            left >= -1e-6
            and right <= 100 + 1e-6
            and top >= -1e-6
            and bottom <= TREEMAP_HEIGHT + 1e-6
        )
    for number, one in enumerate(spans):
        for other in spans[number + 1 :]:
            apart = (
                one[1] <= other[0] + 1e-6
                or other[1] <= one[0] + 1e-6
                or one[3] <= other[2] + 1e-6
                or other[3] <= one[2] + 1e-6
            )
            assert apart


def test_four_equal_boxes_of_a_wide_rectangle() -> None:
    # 1200 x 322 below the group's title: side by side each is 300 x 322, nearly a square
    boxes = [each for each in rectangles(treemap((1, 1, 1, 1))) if not each.is_group]
    assert [round(each.x) for each in boxes] == [0, 25, 50, 75]
    assert {round(each.height) for each in boxes} == {321}


def test_empty_treemap() -> None:
    assert rectangles(Treemap("", ())) == []
    assert [each.box.nbytes for each in rectangles(treemap((3, 0)))] == [3, 3]
