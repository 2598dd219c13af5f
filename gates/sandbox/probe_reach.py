"""Probes of reach: files outside, the home, secrets, other jobs, the network.

Run inside the sandbox; standard library only. What they reach for is bait that the judge laid out, or is opened and
left as it was. An empty list says that everything was refused.
"""

import contextlib
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

from kgen.gates.sandbox.attempt import Bait, through

NOBODYS = "192.0.2.1"  # an address for documentation


def _open(path: str, flags: int) -> None:
    os.close(os.open(path, flags))


def _moved(target: Path) -> None:
    own = Path("mine")
    own.touch()
    own.rename(target)


def write_outside(bait: Bait) -> list[str]:
    done = []
    for place in bait["places"]:
        name = f"{place}/{bait['mark']}"
        done += through(
            {
                f"created a file in {place}": partial(_open, name, os.O_WRONLY | os.O_CREAT),
                f"made a folder in {place}": Path(f"{name}-folder").mkdir,
                f"made a link in {place}": partial(Path(f"{name}-link").symlink_to, "x"),
                f"moved a file to {place}": partial(_moved, Path(f"{name}-moved")),
            }
        )
    return done + through({f"opened {file} to write": partial(_open, file, os.O_WRONLY) for file in bait["files"]})


def _read(path: str) -> bool:
    with Path(path).open("rb") as file:
        return bool(file.read(64))


def _list(path: Path) -> list[str]:
    return [entry.name for entry in path.iterdir()]


def other_jobs(bait: Bait) -> list[str]:
    other = bait["sibling"]
    return through(
        {
            "listed the folders of jobs": partial(_list, Path(other).parent),
            "read another job's source": partial(_read, f"{other}/candidate.py"),
            "wrote another job's object": partial(_open, f"{other}/kernel.o", os.O_WRONLY | os.O_CREAT),
        }
    )


def home(bait: Bait) -> list[str]:
    """`names`: what lies in the home and is not on the way to something that the sandbox must show."""
    seen: list[str] = []
    with contextlib.suppress(OSError):
        seen = [f"saw {name} in the home" for name in _list(Path(bait["home"])) if name in bait["names"]]
    return seen[:3] + through({f"read {file}": partial(_read, file) for file in bait["files"]})


def environment(bait: Bait) -> list[str]:
    got = [f"variable {name}" for name, value in os.environ.items() if bait["secret"] in value]
    pids: set[int] = {bait["outsider"], os.getppid()}
    with contextlib.suppress(OSError):
        pids |= {int(name) for name in _list(Path("/proc")) if name.isdigit()}
    for file in [f"/proc/{pid}/{kind}" for pid in sorted(pids) for kind in ("environ", "cmdline")]:
        with contextlib.suppress(OSError):
            got += [file] if bait["secret"].encode() in Path(file).read_bytes() else []
    return got


def _stream(family: int, address: Any, say: bytes) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(2)
        connection.connect(address)
        connection.sendall(say)


def _datagram(family: int, address: Any, say: bytes) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as connection:
        connection.sendto(say, address)


def _socket(family: int, kind: int, protocol: int = 0) -> None:
    socket.socket(family, kind, protocol).close()


def tcp(bait: Bait) -> list[str]:
    say = bait["say"].encode()
    return through(
        {
            "connected by TCP": partial(_stream, socket.AF_INET, ("127.0.0.1", bait["tcp"]), say),
            "connected by TCP over IPv6": partial(_stream, socket.AF_INET6, ("::1", bait["tcp6"]), say),
            "listens": lambda: socket.create_server(("127.0.0.1", 0)).close(),
        }
    )


def udp(bait: Bait) -> list[str]:
    say = bait["say"].encode()
    return through(
        {
            "sent by UDP": partial(_datagram, socket.AF_INET, ("127.0.0.1", bait["udp"]), say),
            "sent to another machine": partial(_datagram, socket.AF_INET, (NOBODYS, 9), say),
            "raw socket": partial(_socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
            "packet socket": partial(_socket, socket.AF_PACKET, socket.SOCK_RAW),
            "netlink socket": partial(_socket, socket.AF_NETLINK, socket.SOCK_RAW),
        }
    )


def dns(bait: Bait) -> list[str]:
    """A query for `SAY.example.com`, to the bait and to the servers that the machine is set to ask."""
    name = b"".join(bytes([len(part)]) + part.encode() for part in (bait["say"], "example", "com"))
    query = b"\x4b\x47\x01\x00\x00\x01" + bytes(6) + name + b"\x00\x00\x01\x00\x01"
    servers = [("127.0.0.1", bait["udp"]), *((server, 53) for server in bait["dns"])]
    return through({f"asked {address[0]}": partial(_datagram, socket.AF_INET, address, query) for address in servers})


def unix_socket(bait: Bait) -> list[str]:
    return through({"connected to a socket file": partial(_stream, socket.AF_UNIX, bait["unix"], bait["say"].encode())})


def abstract_socket(bait: Bait) -> list[str]:
    name = "\0" + bait["abstract"]
    return through(
        {
            "connected to an abstract socket": partial(_stream, socket.AF_UNIX, name, bait["say"].encode()),
            "took an abstract name": lambda: socket.socket(socket.AF_UNIX).bind(f"{name}-mine"),
        }
    )
