"""What DataLoaders hold ahead of the step: read from a running iterator, nothing is taken out."""
