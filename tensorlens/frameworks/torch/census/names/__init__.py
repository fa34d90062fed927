"""Names of torch's tensors, from modules, optimizers, Keras, holders and autograd."""
