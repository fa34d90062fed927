"""Which line takes the memory: tracing, accounting, and the ``@profile`` family."""
