"""Where tensorlens meets other tools: thin, and imported only by them."""
