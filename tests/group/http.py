"""A probe's side of the wire."""

import http.client
import json
import socket
from typing import Any


def get(
    address: tuple[str, int], path: str, method: str = "GET", timeout: float = 60.0
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    is_json = response.headers["Content-Type"] == "application/json"
    return response.status, json.loads(content) if is_json and content else content


def raw(address: tuple[str, int], *chunks: bytes, timeout: float = 60.0) -> bytes:
    """Send bytes and return everything that comes back."""
    received = b""
    with socket.create_connection(address, timeout=timeout) as connection:
        try:
            for chunk in chunks:
                connection.sendall(chunk)
            while chunk := connection.recv(4096):
                received += chunk
        except ConnectionError:
            pass  # refused before everything was sent
    return received
