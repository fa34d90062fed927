"""Names of torch's tensors: what modules, optimizers, Keras and autograd call them."""
