"""Results of operators without data, where torch's fake kernels fail or differ from real kernels.

One module for each family of operators. Its ``ANSWERS`` are handlers by operator, called before
torch with the mode, the operator and its arguments; ``NotImplemented`` passes on to torch.
:mod:`.cuda_kernels` adds operators of CUDA builds to torch's own table.
"""
