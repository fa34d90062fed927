"""Results of operators without data: fake tensors, and values that a program reads from them.

Torch's fake kernels fail for some operators, or differ from real kernels; there is a module for
each family of these. Its ``ANSWERS`` are handlers by operator, called before torch with the mode,
the operator and its arguments; ``NotImplemented`` passes on to torch. :mod:`.cuda_kernels` adds
operators of CUDA builds to torch's own table.

:mod:`.answers` calls the handlers and answers reads of values. :mod:`.constants` has known values,
and :mod:`.value_rules` those of new tensors.
"""
