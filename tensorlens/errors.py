"""Every error a user can meet: one clear line that says what to do."""

from __future__ import annotations


class TensorlensError(Exception):
    """The base of all errors raised by tensorlens; its text is one line for a person.

    ``exit_code`` is what the command line exits with when it meets the error.
    """

    exit_code = 1


class UsageError(TensorlensError, ValueError):
    """An argument, option or setting that cannot be taken as it is."""

    exit_code = 2


class ProfileError(TensorlensError, TypeError):
    """An object whose lines cannot be profiled (a builtin, a class, a native module)."""


class DeviceError(TensorlensError, ValueError):
    """A device that does not exist here, or a name that is no device."""


class FileFormatError(TensorlensError, ValueError):
    """A file that cannot be read as a record, or is damaged."""
