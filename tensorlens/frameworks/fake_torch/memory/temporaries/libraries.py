"""cuFFT and cuSOLVER, whose workspaces only the card knows: bounds.

The likeliest figure of a decomposition is one copy of its input, which every one of them makes
(``BatchLinearAlgebraLib.cpp``: column-major copies to work on).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorlens.frameworks.fake_torch.memory.temporaries.rules import Rule, nbytes
from tensorlens.frameworks.fake_torch.tracker import Hidden
from tensorlens.records.cards import Card


def _decomposition(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterable[Hidden]:
    size = nbytes(args[0])
    return [Hidden(size, 0, 4 * size + (16 << 20), "cuSOLVER workspace")]


def _transform(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterable[Hidden]:
    # SpectralOps.cpp, _exec_fft: the input in the order of the dimensions, and cuFFT's work area
    size = max(nbytes(args[0]), nbytes(result))
    return [Hidden(size, 0, 2 * size + (1 << 20), "cuFFT workspace")]


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "linalg_cholesky_ex",
            "linalg_eigh",
            "_linalg_eigh",
            "_linalg_svd",
            "linalg_qr",
            "linalg_lu_factor_ex",
            "_linalg_solve_ex",
            "_linalg_det",
            "_linalg_slogdet",
            "linalg_inv_ex",
            "linalg_eig",
            "linalg_lstsq",
            "cholesky_inverse",
            "geqrf",
        ),
        _decomposition,
    ),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), _transform),
}
