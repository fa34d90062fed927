"""A smaller buffer of ``tf.data``, whose batches are in TensorFlow's own memory."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.suggesting.candidates import Candidate
from tensorlens.suggesting.scene import Scene


def smaller_buffers(scene: Scene) -> Iterator[Candidate]:
    """Give the change to one batch ahead, where ``tf.data`` held more after the last step."""
    for each in () if scene.facts is None else scene.facts.buffered:
        fewer = each.batches - 1
        if fewer < 1:
            continue
        replay = scene.replay()
        replay.add(-fewer * each.batch_nbytes, scene.steps[0].begin, len(scene.log))
        yield Candidate(
            kind="queue",
            change="prefetch one batch",
            what=f"{each.name} holds {each.batches:,} batches ahead of the step",
            code="dataset.prefetch(1)",
            peak=replay.peak()[0],
            cost="the step waits where a batch takes longer than a step now and then",
        )
