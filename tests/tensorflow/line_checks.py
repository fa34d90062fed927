"""Line tables looked at by source text."""

from tensorlens import LineProfiler


class Table:
    """The lines of one function's table, found by a part of their source."""

    def __init__(self, function):
        self.function = function

    def line(self, text):
        (found,) = [line for line in self.function.lines if text in line.source]
        return found

    def memory(self, text):
        return self.line(text).memory["cpu"]

    def net(self, text):
        return self.memory(text).net

    def room(self, text):
        """What was there at once beyond what was there when the line began."""
        memory = self.memory(text)
        return memory.peak - (memory.allocated - memory.net)


def tables(report, execution="lines"):
    """Return the tables of a report by the functions' names."""
    chosen = [each for each in report.functions if each.execution == execution]
    found = {each.name: Table(each) for each in chosen}
    assert len(found) == len(chosen)
    return found


def eager_table(function, *arguments, warm=True):
    """Return the table of one call; one more came before, so that kernels have been set up."""
    if warm:
        function(*arguments)
    with LineProfiler(function) as profiler:
        function(*arguments)
    (found,) = tables(profiler.result()).values()
    return found
