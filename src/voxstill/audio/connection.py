"""Bytes over the socket between a decoder and its child process, whole or not at all."""

from __future__ import annotations

import socket


def send(connection: socket.socket, *parts: bytes | memoryview) -> None:
    """Send all bytes of all parts."""
    sent = connection.sendmsg(parts)
    for part in parts:  # sendmsg may send a part only
        if sent < len(part):
            connection.sendall(memoryview(part)[sent:])
        sent = max(0, sent - len(part))


def receive(connection: socket.socket, num_bytes: int) -> bytearray:
    """Receive `num_bytes` bytes; ConnectionError if the other side has closed the socket."""
    received = bytearray(num_bytes)
    fill(connection, memoryview(received))
    return received


def fill(connection: socket.socket, buffer: memoryview) -> None:
    """Receive as many bytes as the buffer has."""
    num_received = 0
    while num_received < len(buffer):
        num_new = connection.recv_into(buffer[num_received:])
        if not num_new:
            raise ConnectionError
        num_received += num_new
