"""Methods of fake tensors that hand values to Python, NumPy or a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorlens.frameworks.fake_torch.values.const_propagation import known

Tell = Callable[[str], None]


def methods(scalar: Callable[[Any], Any], caution: Tell) -> dict[str, Any]:
    """Return methods by their names.

    Args:
        scalar: gives the value of a tensor of one element.
        caution: called with one line for everything that is assumed.
    """

    def tolist(tensor: Any) -> Any:
        if tensor.dim() == 0:
            return scalar(tensor)
        found = known(tensor)
        if found is None or found.origin.assumed:
            _say_listed(tensor, caution)
        if found is not None:
            with torch._C._DisableTorchDispatch():
                return found.tensor.tolist()
        value = torch.ones((), dtype=tensor.dtype, device="meta").dtype
        return _nested(tensor.shape, 1.0 if value.is_floating_point else 1)

    def numpy(tensor: Any, *, force: bool = False) -> Any:
        if tensor.requires_grad and not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. "
                "Use tensor.detach().numpy() instead."
            )
        found = known(tensor)
        with torch._C._DisableTorchDispatch():
            if found is not None:
                if found.origin.assumed:
                    _say_listed(tensor, caution)
                return found.tensor.detach().clone().numpy()
            _say_listed(tensor, caution)
            import numpy as np

            kind = torch.empty((), dtype=tensor.dtype, device="cpu").numpy().dtype
        return np.zeros(tuple(tensor.shape), kind)

    def text(tensor: Any, form: str) -> str:
        if form and tensor.dim() == 0:
            return format(scalar(tensor), form)
        return object.__format__(tensor, form)

    def data_ptr(tensor: Any) -> int:
        # one number for each storage: programs tell shared weights by it
        offset = tensor.storage_offset() * tensor.element_size()
        return int(tensor.untyped_storage()._cdata + offset)

    return {"tolist": tolist, "numpy": numpy, "__format__": text, "data_ptr": data_ptr}


def _say_listed(tensor: Any, caution: Tell) -> None:
    caution(
        f"the program asks for the {tensor.numel():,} values of a tensor, which depend on data: "
        "it was given made-up ones; what it decides by them may take more or less memory"
    )


def _nested(shape: Any, value: Any) -> Any:
    if len(shape) == 1:
        return [value] * shape[0]
    return [_nested(shape[1:], value) for _ in range(shape[0])]
