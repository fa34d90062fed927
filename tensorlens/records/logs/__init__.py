"""Logs of recordings: events in columns, their stacks, where they come from, and several as one."""
