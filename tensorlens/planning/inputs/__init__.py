"""Input queues: the batches that loaders hold ahead of the step, measured and planned."""
