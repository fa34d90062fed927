"""What holds of every framework's adapter."""

import inspect

from tensorlens.frameworks import base


def check_adapter(adapter: base.Adapter) -> None:
    """Assert that what it defers to another module is there, and takes what the protocol says."""
    kind = type(adapter)
    protocol = {name: each for name, each in vars(base.Adapter).items() if inspect.isfunction(each)}
    assert set(vars(kind)) - {"name", "words", "__init__", "__module__", "__doc__"} <= set(protocol)
    for name, method in protocol.items():
        asked = [*inspect.signature(method).parameters][1:]
        given = [
            each
            for each in inspect.signature(getattr(adapter, name)).parameters.values()
            if each.default is inspect.Parameter.empty
        ]
        assert len(given) == len(asked), name
