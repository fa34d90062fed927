"""What grows: blocks that steps left behind, put together, tested for steady growth, described."""
