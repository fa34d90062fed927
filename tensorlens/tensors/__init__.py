"""Live tensors by name, the ledger that balances, and what changed."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "difference": ("Change", "Changes"),
        "present.tables": ("unknown_figures",),
    },
)
