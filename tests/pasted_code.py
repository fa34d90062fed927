"""The code of suggestions as a terminal shows it, for tests that run it."""


def printed_code(found, change):
    """Return the lines of code that the text of suggestions has for one of them."""
    count = len(found)
    number = f"{[*found].index(change) + 1:{len(str(count))}}  "
    lines = str(found).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(number))
    shown = [line[len(number) :] for line in lines[start:]]
    end = next(at for at, line in enumerate(shown) if line and change.what.startswith(line))
    return "\n".join(shown[:end])


def pasted(found, names):
    """Run what is printed for each suggestion, in a namespace of its own, and return these."""
    spaces = {}
    for change in found:
        spaces[change.change] = space = dict(names)
        exec(printed_code(found, change), space)
    return spaces
