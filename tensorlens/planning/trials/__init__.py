"""What the trials of every framework share: how a program begins, steps and is measured.

A framework's built-in options are in a folder of its own; no module here imports a framework.
"""
