"""Memory by source line: tracing, accounting, and the ``@profile`` family."""
