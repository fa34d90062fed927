"""Input queues: what loaders hold ahead of the step, measured and planned."""
