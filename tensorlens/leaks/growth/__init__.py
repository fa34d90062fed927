"""Groups blocks that steps left behind, tests them for steady growth, and describes them."""
