"""What every framework says of its input queues."""
