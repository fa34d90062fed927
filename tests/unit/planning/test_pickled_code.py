"""Code that goes to another process by value keeps its file and its lines."""

import sys
import types

import cloudpickle
import pytest

from tensorlens.planning.trials import pickling


def outer():
    def inner():
        return 1

    return inner


@pytest.mark.parametrize("with_data", [False, True])
def test_functions_and_those_in_them_are_of_their_file(with_data):
    # a module that nobody can import: it goes by value
    module = types.ModuleType("nowhere_to_be_found")
    function = types.FunctionType(outer.__code__, vars(module))
    function.__module__ = "__main__"
    made = pickling.unpack(pickling.pack(function, with_data=with_data))
    for code, own in ((made.__code__, outer.__code__), (made().__code__, outer().__code__)):
        assert code is not own
        assert (code.co_filename, code.co_firstlineno) == (__file__, own.co_firstlineno)
        assert list(code.co_lines()) == list(own.co_lines())


@pytest.mark.parametrize("before", [False, True])
def test_a_module_goes_by_value_afterwards_where_the_program_said_so(before, monkeypatch):
    module = types.ModuleType("nowhere_to_be_found")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    function = types.FunctionType(outer.__code__, vars(module))
    function.__module__ = module.__name__
    if before:
        cloudpickle.register_pickle_by_value(module)
    try:
        assert pickling.unpack(pickling.pack(function))()() == 1
        assert (module.__name__ in cloudpickle.list_registry_pickle_by_value()) == before
    finally:
        if before:
            cloudpickle.unregister_pickle_by_value(module)
