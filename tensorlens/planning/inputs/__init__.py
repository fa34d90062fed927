"""What loaders and queues hold ahead of the step, measured and planned."""
