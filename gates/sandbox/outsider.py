"""A process outside the sandbox that must notice nothing: servers, a secret, a target of signals.

Standard library only: `python -I -S outsider.py FOLDER NAME`. Says on stdout where it listens (JSON), then one JSON
line for everything that reaches it: by which door, and the first bytes. Ends when its stdin does.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
from types import FrameType

SECRET = "SECRET_OF_THE_JUDGE"  # name of the variable that a probe must not find


def _say(**body: object) -> None:
    os.write(1, json.dumps(body).encode() + b"\n")


def _signalled(number: int, frame: FrameType | None) -> None:
    _say(door="signals", got="")


def _listening(folder: str, name: str) -> dict[str, socket.socket]:
    doors = {
        "tcp": socket.create_server(("127.0.0.1", 0)),
        "udp": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "unix": socket.socket(socket.AF_UNIX),
        "abstract": socket.socket(socket.AF_UNIX),
    }
    doors["udp"].bind(("127.0.0.1", 0))
    doors["unix"].bind(f"{folder}/socket")
    doors["abstract"].bind(f"\0{name}")
    for door in ("unix", "abstract"):
        doors[door].listen()
    with contextlib.suppress(OSError):  # no IPv6 here
        doors["tcp6"] = socket.create_server(("::1", 0), family=socket.AF_INET6)
    return doors


def _receive(door: socket.socket) -> bytes:
    if door.type == socket.SOCK_DGRAM:
        return door.recv(256)
    with door.accept()[0] as connection:
        connection.settimeout(1)
        return connection.recv(256)


def main() -> None:
    folder, name = sys.argv[1:3]
    doors = _listening(folder, name)
    signal.signal(signal.SIGURG, _signalled)
    os.chmod(f"{folder}/socket", 0o777)  # noqa: PTH101  the sandbox's own user must be able to try
    _say(**{door: s.getsockname()[1] for door, s in doors.items() if s.family != socket.AF_UNIX})
    while True:
        ready = select.select([sys.stdin, *doors.values()], [], [])[0]
        if sys.stdin in ready:
            return
        for door, listener in doors.items():
            if listener in ready:
                try:
                    _say(door=door, got=_receive(listener).decode("latin-1"))
                except OSError:
                    continue


if __name__ == "__main__":
    main()
