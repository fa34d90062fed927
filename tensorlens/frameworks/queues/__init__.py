"""Parts that the input queues of all frameworks share."""
