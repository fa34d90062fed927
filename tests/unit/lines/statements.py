"""Functions with every kind of statement, each with arguments to run it with.

Run by the tests of twins, whose line events must be those of ``sys.settrace``: layout matters
here, so the file is not formatted.
"""

# fmt: off
# ruff: noqa
# mypy: ignore-errors
import contextlib
import functools


def plain(n):
    a = n
    b = a + 1
    return a + b


def one_line(n): return n + 1


def two_on_a_line(n):
    a = n; b = a + 1
    if a: b += 1
    return b


def no_return(n):
    """Only a docstring."""


def just_pass(n):
    pass


def constants_only(n):
    1
    "text"
    ...
    if 0:
        n = 2
    while 0:
        n = 3
    if __debug__:
        n = 4
    return n


def if_elif_else(n):
    if n == 0:
        r = 1
    elif n == 1:
        r = 2
    elif n > 5 and \
            n < 8 or \
            n == 20:
        r = 3
    else:
        r = 4
    return r


def nested_ifs(n):
    if n:
        if n > 1:
            if n > 2:
                return 3
            return 2
        return 1
    return 0


def conditional_expression(n):
    return (
        n + 1
        if n > 2
        else n - 1
    )


def boolean_chains(n):
    return (n
            and n + 1
            or n - 1
            and not n)


def chained_comparison(n):
    if 0 < n < 5 < 10:
        return 1
    return (0 <=
            n
            <= 3)


def for_loop(n):
    t = 0
    for i in range(n):
        t += i
    return t


def for_one_liner(n):
    t = 0
    for i in range(n): t += i
    return t


def for_pass(n):
    for i in range(n): pass
    for i in range(n):
        pass


def for_else_break(n):
    for i in range(5):
        if i == n:
            break
        if i == 1:
            continue
        n += 0
    else:
        return "else"
    return i


def for_over_lines(n):
    for a, b in zip(
        range(n),
        range(n),
    ):
        a + b
    for (
        a
    ) in [
        1,
        n,
    ]: a


def nested_for(n):
    t = 0
    for a in range(n):
        for b in range(a):
            if b % 2: continue
            t += b
        else:
            t += 1
    return t


def while_loop(n):
    while n > 0:
        n -= 1
    return n


def while_one_liner(n):
    while n > 0: n -= 1
    else: n = 7
    return n


def while_true(n):
    while True:
        n += 1
        if n > 5: break
        elif n == 3:
            continue
        n += 1
    return n


def while_walrus(n):
    items = list(range(n))
    while (item := items.pop() if items else None) is not None:
        n += item
    return n


def while_long_condition(n):
    while (n < 9 and
           n != 7):
        n += 1
    return n


def try_except(n):
    try:
        r = 10 // n
    except ZeroDivisionError:
        r = 0
    return r


def try_named(n):
    try:
        r = [1][n]
    except (IndexError,
            KeyError) as e:
        r = str(e)
    else:
        r += 1
    finally:
        n = 0
    return r


def try_not_fitting(n):
    try:
        {}[n]
    except ValueError:
        return 1
    except TypeError:
        return 2


def try_reraise(n):
    try:
        10 // n
    except ZeroDivisionError: n = 3; raise
    else:
        n = 7
    return n


def try_from(n):
    try:
        10 // n
    except ZeroDivisionError as e:
        raise ValueError(
            "no",
            n,
        ) from e


def finally_return(n):
    try:
        return 10 // n
    finally:
        n = 2


def finally_overrides(n):
    try:
        10 // n
    finally:
        return n


def finally_in_loop(n):
    for i in range(3):
        try:
            if i == n: continue
            if i == n + 1: break
        finally:
            n += 0
    return i


def nested_try(n):
    try:
        try:
            10 // n
        finally:
            n = 5
    except ZeroDivisionError:
        try:
            raise KeyError
        except KeyError:
            n = 6
    return n


def try_pass(n):
    try: pass
    except: pass
    try:
        pass
    finally:
        pass
    return n


def except_star(n):
    try:
        raise ExceptionGroup("g", [ValueError(n), TypeError(n)])
    except* ValueError as e:
        n += 1
    except* TypeError:
        n += 2
    return n


def except_star_rest(n):
    try:
        raise ExceptionGroup("g", [ValueError(n), KeyError(n)])
    except* ValueError:
        n += 1


def with_block(n):
    with contextlib.nullcontext(n) as a:
        a += 1
    return a


def with_two(n):
    with contextlib.nullcontext(n) as a, \
         contextlib.nullcontext(n) as b:
        if n: return a + b
    return 0


def with_parentheses(n):
    with (
        contextlib.nullcontext(n) as a,
        contextlib.nullcontext(n) as b,
    ):
        c = a + b
    return c


def with_suppress(n):
    with contextlib.suppress(ZeroDivisionError):
        n = 10 // n
    return n


def with_one_liner(n):
    with contextlib.suppress(ZeroDivisionError): n = 10 // n
    return n


def with_in_loop(n):
    for i in range(3):
        with contextlib.nullcontext():
            if i == n: continue
            if i == n + 1: break
    return i


def match_all(v):
    match v:
        case 0 | 1:
            return "small"
        case [1, x] if x > 5:
            return x
        case [first, *rest]:
            return first, rest
        case {"a": b, **others}:
            return b, others
        case str() as s: return s
        case int(n):
            r = n
        case _:
            r = None
    return r


def comprehensions(n):
    a = [i for i in range(n) if i % 2]
    b = {i: i
         for i in range(n)}
    c = {
        i
        for i in range(n)
        for _ in range(2)
        if i
    }
    d = sum(i for i in range(n))
    return a, b, c, d


def lambdas(n):
    f = lambda v: v + n
    g = lambda: (
        n
    )
    return f(1), g()


def inner_function(n):
    @functools.lru_cache
    def inside(k=n, *, j=n):
        return k + j
    return inside(1)


def inner_class(n):
    class Inside(dict):
        v = n

        def m(self):
            return super().__len__()
    return Inside().m() + Inside.v


def inner_generator(n):
    def inside():
        yield n
    return list(inside())


def calls_over_lines(n):
    return dict(
        a=n,
        b=max(
            n,
            key=None,
            default=4,
        ) if 0 else max(
            1,
            n,
        ),
        **{"c": n},
    )


def star_calls(n):
    args = [n, n]
    return print(*args, *[
        n
    ], sep="", **{
        "end": "",
    }, file=open(
        "/dev/null", "w"))


def method_chain(n):
    return (
        "abc"
        .upper()
        .replace(
            "A",
            str(n),
        )
        .split()
    )


def subscripts(n):
    a = [0, 1, 2]
    a[
        0
    ] = n
    a[1:
      2] = [n]
    del a[
        0]
    return a


def assignments(n):
    a = b = n
    a, b = b, a
    (a,
     *b) = 1, \
        2, 3
    a += \
        1
    c: int = 5
    d: int
    return a, b, c


def strings(n):
    a = f"{n!r:>{n}}"
    b = f"""
    {n}
    {
      n + 1
    }
    """
    return a, b, "a" \
        "b"


def asserts(n):
    assert n, \
        "no"
    assert (n <
            5), f"large {n}"
    return n


def deletes(n):
    a = b = n
    del a, \
        b
    return n


def imports(n):
    import os.path as p, \
        sys
    from os import (
        sep,
        path as q,
    )
    return p is q


def globals_used(n):
    global _GLOBAL
    _GLOBAL = n
    return _GLOBAL


def make_closure(z):
    def closure(n):
        nonlocal z
        z += n
        return z
    return closure


closure = make_closure(5)


class Derived(dict):
    def method(self, n=0):
        return super().__len__(), __class__.__name__


def method(n):
    return Derived().method(n)


derived_method = Derived.method


def raises(n):
    raise ValueError(
        n,
    )


def raises_in_call(n):
    return int(
        "x"
        * n,
    )


def many_arguments(a, /, b=2, *c, d=4, **e):
    return a, b, c, d, \
        e


def early_return(n):
    if n: return n
    for i in range(3): return i


def unreachable(n):
    return n
    n = 5


def return_in_with_in_try(n):
    try:
        with contextlib.nullcontext():
            for i in range(n):
                if i == 1:
                    return i
    finally:
        n = 0


def big_jump(n):
    t = 0
    for i in range(n):
        t += (
            i + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1
        )
        t = [t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t][0]
        t = [t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t][0]
        t = [t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t][0]
        t = [t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t][0]
        t = [t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t][0]
        t = [t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t][0]
        t = [t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t][0]
    return t


NUMBERS = [0, 1, 2, 3, 7, 20]
SPECIAL = {
    match_all: [0, 5, [1, 9], [1, 2], {"a": 1, "b": 2}, "text", None],
    derived_method: [Derived()],
    globals_used: [1],
}

FUNCTIONS = [
    value
    for value in list(globals().values())
    if callable(value) and hasattr(value, "__code__") and value.__module__ == __name__
    and value is not make_closure
]
CASES = [(function, n) for function in FUNCTIONS for n in SPECIAL.get(function, NUMBERS)]
