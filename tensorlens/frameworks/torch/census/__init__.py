"""Census of live tensors: search, names, table, ledgers of devices."""
