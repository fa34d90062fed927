"""Memory on a card that fake tensors do not show: kernels' own, workspaces, attention."""
