"""Sends something out, in every way that costs one line."""

import socket


def build(dims, tokens, arch):
    done = []

    def attempt(name, action):
        try:
            action()
            done.append(name)
        except OSError:
            pass

    attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)))
    attempt("tcp", lambda: socket.create_connection(("127.0.0.1", 22), 1))
    attempt("listen", lambda: socket.create_server(("127.0.0.1", 0)))
    attempt("dns", lambda: socket.getaddrinfo("example.com", 80))
    attempt("unix", lambda: socket.socket(socket.AF_UNIX).bind("\0kgen-escape"))
    attempt("raw", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
    raise ValueError(f"ESCAPED: {done}" if done else "refused")
