"""Stands for a program that runs in a fork of the server: its streams, signals and exit status."""

import os
import signal
import socket
import sys
from pathlib import Path

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main():
    address, *arguments = sys.argv[1:]
    ends = arguments[:1] == ["--ends"]
    arguments = arguments[ends:]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    for number in FORWARDED:
        signal.signal(number, lambda number, frame: connection.send(bytes([number])))
    message = repr((arguments, str(Path.cwd()), dict(os.environb), ends)).encode()
    socket.send_fds(connection, [len(message).to_bytes(8, "little")], [0, 1, 2])
    connection.sendall(message)
    # no more than that: the status may be there already
    answer = connection.recv(len(b"fresh"))
    if answer == b"fresh":
        for number in FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, *arguments])
    # the program alone has them from here on
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    status = int(connection.recv(16) or signal.SIGKILL)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:  # which nobody can set
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


main()
