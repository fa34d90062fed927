"""Names of what TensorFlow's own optimizers hold, those of ``tf.compat.v1.train``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlens.frameworks.base import Root
from tensorlens.frameworks.keras.anchors import OptimizerAnchors
from tensorlens.frameworks.tensorflow.census import kinds


class LegacyOptimizerNames(OptimizerAnchors):
    """Names the slots of one optimizer after another: ``MomentumOptimizer.weight.momentum``."""

    def add_all(self, found: Sequence[Any], roots: Sequence[Root]) -> None:
        """Name what the given optimizers hold, then what the others do."""
        for root in roots:
            if issubclass(type(root.item), kinds.legacy_optimizer()):
                self._add(root.item, root.name)
        for optimizer in found:
            self._add(optimizer, None)

    def _add(self, optimizer: Any, name: str | None) -> None:
        node = self._anchor(optimizer, name)
        if node is None:
            return
        content = kinds.content_of(optimizer)
        for kind, slots in _entries(content.get("_slots")):
            for slot in (value for _, value in _entries(slots)):
                path = str(kinds.content_of(slot).get("_handle_name", "")).partition(":")[0]
                # named weight/Momentum
                below = self._names.attribute(node, path.rpartition("/")[0] or path)
                self._give(slot, self._names.attribute(below, str(kind)), "optimizer")
        for key, value in _entries(content.get("_non_slot_dict")):
            text = str(key[0]) if type(key) is tuple and key else str(key)
            self._give(value, self._names.attribute(node, text), "optimizer")


def _entries(value: Any) -> list[tuple[Any, Any]]:
    return list(dict.items(value)) if issubclass(type(value), dict) else []
