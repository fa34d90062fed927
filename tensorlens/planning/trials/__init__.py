"""Runs a program in a process of its own: how it begins, steps and is measured.

A framework's built-in options are in a folder of its own; no module here imports a framework.
"""
