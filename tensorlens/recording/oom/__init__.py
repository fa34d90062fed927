"""Failed allocations explained: who asked, what was resident, what could be freed."""
