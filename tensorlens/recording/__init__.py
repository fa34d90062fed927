"""Which moment: ``record()``, what a recording tells, and failed allocations explained."""
