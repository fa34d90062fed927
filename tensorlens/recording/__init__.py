"""Memory over time: ``record()``, what a recording tells, and failed allocations explained."""
