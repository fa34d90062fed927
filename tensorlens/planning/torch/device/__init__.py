"""A CUDA device that is not there, as torch sees it; nothing of it depends on a job."""
