"""A CUDA device that is not there, as torch sees it. Nothing here depends on a job."""
