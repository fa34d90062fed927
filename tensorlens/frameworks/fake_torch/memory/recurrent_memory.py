"""What cuDNN takes for recurrent networks, while they run and for their backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensorlens.frameworks.fake_torch.tracker import Hidden

_aten: Any = torch.ops.aten
RECURRENT = "cuDNN RNN workspace"
_LSTM, _GRU = 2, 3
_GATES = {_LSTM: 4, _GRU: 3}
_KEPT = {_LSTM: 6, _GRU: 5}


def rnn_reserve(
    mode: int,
    steps: int,
    batch: int,
    hidden_size: int,
    layers: int,
    directions: int,
    itemsize: int,
    dropout: float = 0.0,
) -> int:
    """Return the likely bytes that cuDNN keeps of a recurrent network's forward pass.

    That is what ``_cudnn_rnn`` gives as its fourth result for training. cuDNN does not tell its
    formula; taken are, for each step, layer, direction and hidden unit, the gates and the states
    that backward needs: 6 numbers for an LSTM, 5 for a GRU, 2 for a plain one; and a byte for each
    number that dropout may leave out between layers.

    Args:
        mode: ``cudnnRNNMode_t``: 0 and 1 plain, 2 LSTM, 3 GRU.
        steps: of the sequence.
        batch: sequences.
        hidden_size: of a layer.
        layers: one on the other.
        directions: 1 or 2.
        itemsize: bytes of a number.
        dropout: between layers.
    """
    numbers = steps * batch * hidden_size * directions
    kept = numbers * layers * _KEPT.get(mode, 2) * itemsize
    return kept + (numbers * (layers - 1) if dropout > 0 else 0)


class RecurrentWorkspaces:
    """Gives what recurrent networks take for a call, as a ``HiddenOf`` of a tracker.

    cuDNN does not tell its formula: likely are the gates of all steps of one layer, which one
    matrix product gives (``cudnnGetRNNTempSpaceSizes`` in ``aten/src/ATen/native/cudnn/RNN.cpp``);
    the least is nothing, the most those of all layers.
    """

    OPERATORS = (_aten._cudnn_rnn.default, _aten._cudnn_rnn_backward.default)

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Hidden]:
        """Return what an operator took besides its results."""
        if func is _aten._cudnn_rnn.default:
            mode, hidden_size, layers, bidirectional = args[6], args[7], args[9], args[13]
        elif func is _aten._cudnn_rnn_backward.default:
            mode, hidden_size, layers, bidirectional = args[10], args[11], args[13], args[17]
        else:
            return ()
        source = args[0]
        rows = source.numel() // max(source.size(-1), 1)
        layer = rows * hidden_size * _GATES.get(mode, 1) * source.element_size()
        likely = layer * (2 if bidirectional else 1)
        return (Hidden(likely, 0, likely * max(layers, 1), RECURRENT),)
