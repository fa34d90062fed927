"""Results of operators without data, where torch's fake kernels fail or differ from real kernels.

One module for each family of operators. :mod:`.answers` is the table that is consulted before
torch; :mod:`.cuda_kernels` adds operators of CUDA builds to torch's own table.
"""
