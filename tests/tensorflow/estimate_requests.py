"""Requests of a step that is run without data, in the place of a trace's ledger."""


class Requests:
    """Keeps their sizes, and the most bytes that were there at once."""

    def __init__(self):
        self.sizes = []
        self.now = self.peak = 0

    def hold(self, nbytes, label):
        return self.take(nbytes, None)

    def mark(self, name):
        """Forget what is there before the step."""
        self.sizes_before = len(self.sizes)

    def take(self, nbytes, place, name=None):
        self.sizes.append(nbytes)
        self.now += nbytes
        self.peak = max(self.peak, self.now)
        return len(self.sizes) - 1

    def give(self, row, place):
        self.now -= self.sizes[row]

    def assign(self, variable, row, old, place):
        """Which of them is a variable does not matter here."""
