"""What holds of every ledger, whatever was read while it was made."""

from tensorlens.records import BALANCE, FIGURES, Ledger


def check_ledger(ledger: Ledger) -> None:
    """Assert that nothing is negative, that what is known adds up, and what is not has a reason."""
    terms = [(term.key, term.nbytes) for term in ledger.parts]
    for name, nbytes in [*((name, getattr(ledger, name)) for name in FIGURES), *terms]:
        assert nbytes is None or nbytes >= 0, f"{name} {nbytes}"
        assert nbytes is not None or ledger.missing[name], name
    for total, names in BALANCE:
        below = [getattr(ledger, name) for name in names]
        if None not in below:
            assert getattr(ledger, total) == sum(below)
    parts = [term.nbytes or 0 for term in ledger.parts if term.of == "cached"]
    if ledger.device == "cpu" and parts:
        assert sum(parts) == ledger.cached
