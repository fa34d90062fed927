"""Results of operators without data, by family, where torch's own fake kernels have none or others.

:mod:`.answers` has the table that is consulted before torch; :mod:`.cuda_kernels` adds to torch's
own table what only a build with CUDA has.
"""
