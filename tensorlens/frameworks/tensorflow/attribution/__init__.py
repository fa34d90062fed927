"""Lines, layers and gradients of what TensorFlow ran, where no Python frame tells them."""
