"""Records every allocation and free of torch, with stack, operator, node, module and names."""
