"""A census of JAX's arrays: found, read, named, and put in a table."""
