"""The bytes of tensors that others have left in this process."""

import gc

import tensorlens


def alive(role):
    gc.collect()
    return tensorlens.MemReporter().snapshot().tensors.role_totals().get(("cpu", role), 0)
