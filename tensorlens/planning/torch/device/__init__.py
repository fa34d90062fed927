"""A CUDA device that is not there, as torch asks for one."""
