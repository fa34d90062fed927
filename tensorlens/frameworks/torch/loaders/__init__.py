"""Reads DataLoaders' queues from a running iterator; nothing is taken out."""
