"""Parts that the censuses of all frameworks share."""
