"""Thin adapters to other tools, imported only by them."""
