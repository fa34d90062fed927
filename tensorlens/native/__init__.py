"""C++ sources of the native parts; ``build.py`` loads them, built before or on first use."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "build": ("NativeUnavailable",),
    },
)
