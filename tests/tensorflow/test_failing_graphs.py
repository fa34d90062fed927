"""What a user reads when a node of a profiled function fails."""

from pathlib import Path

import pytest
import tensorflow as tf

import tensorlens

PACKAGE = str(Path(tensorlens.__file__).parent)


@pytest.mark.parametrize("order", ["inside", "outside"])
def test_the_stack_of_a_node_is_the_programs_own(order: str) -> None:
    profiler = tensorlens.LineProfiler()

    def look_up(table: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
        doubled = table * 2.0
        return tf.gather(doubled, row)

    inside = order == "inside"
    function = tf.function(profiler(look_up)) if inside else profiler(tf.function(look_up))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        function(tf.ones((4,)), tf.constant(30))
    told = str(caught.value)
    assert "in look_up" in told
    assert str(Path(__file__)) in told
    assert PACKAGE not in told
