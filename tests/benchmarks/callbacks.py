"""What a trainer's callback takes of each step, as its monitor is told of phases of a real step."""

import tempfile
from statistics import mean
from time import perf_counter

import torch

from tensorlens.integrations import StepMonitor

STEPS, LONG = 300, 1000
_WARMUP = 10


def show_all() -> None:
    """Print the microseconds a step, without the leak watch and with it."""
    print("\ncallback of a trainer in a step of about 10 ms that empties the caches, one thread")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for leaks, steps in ((False, STEPS), (True, STEPS), (True, LONG)):
            callback, whole = _seconds(leaks, steps)
            name = f"{steps} steps{', leak watch' if leaks else ''}"
            share = f"{callback * 1e6:.0f} us of {whole * 1e3:.1f} ms, {callback / whole:.2%}"
            print(f"  {name:<34}{share}")
    finally:
        torch.set_num_threads(threads)


def _seconds(leaks: bool, steps: int) -> tuple[float, float]:
    """Return the mean seconds of what the callback calls, and of a whole step without it."""
    layers = (each for _ in range(20) for each in (torch.nn.Linear(64, 64), torch.nn.ReLU()))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    batch, large = torch.randn(32, 64), torch.zeros(22_000_000)
    own: list[float] = []
    whole: list[float] = []

    def timed(call, *arguments):
        begun = perf_counter()
        call(*arguments)
        return perf_counter() - begun

    with tempfile.TemporaryDirectory() as folder:
        monitor = StepMonitor(leaks=leaks, folder=folder)
        monitor.begin([model, optimizer])
        for step in range(steps):
            begun = perf_counter()
            spent = timed(monitor.step_begins)
            large.add_(1)
            loss = model(batch).sum()
            spent += timed(monitor.phase_ends, "forward")
            loss.backward()
            large.add_(1)
            spent += timed(monitor.phase_ends, "backward")
            optimizer.step()
            optimizer.zero_grad()
            large.add_(1)
            spent += timed(monitor.step_ends)
            if step % 16 == 0:
                spent += timed(monitor.metrics)
            own.append(spent)
            whole.append(perf_counter() - begun - spent)
        monitor.end()
    return mean(own[_WARMUP:]), mean(whole[_WARMUP:])


if __name__ == "__main__":
    show_all()
