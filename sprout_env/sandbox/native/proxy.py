"""The only way out of a sandbox with a network of its own: an HTTP proxy on the host's side.

It accepts on a socket that the init made inside the sandbox's network namespace, on its loopback,
and handed out: there is no route, no name server and no forwarder inside. CONNECT and absolute-URI
requests pass where the policy lets them; all else is answered 403 with a clear text. Names are
resolved here, so that none of them becomes a way to the host's own services.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import selectors
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from sprout_env.errors import ConfigError

_PORTS = (80, 443)
_HEAD_BYTES = 65_536
_PIECE = 65_536
_CONNECT_S = 30.0
_IDLE_S = 300.0
_MOST_CONNECTIONS = 128

_NAME = re.compile(r"[\w.:%-]+", re.ASCII)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Where clouds tell machines their credentials, besides link-local addresses (AWS, Google, Alibaba,
# Oracle, Azure).
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
    )
)

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Policy(Protocol):
    """What may be reached."""

    def resolve(self, host: str, port: int) -> tuple[str, int]:
        """Return the address to connect to.

        Raises:
            Refused: It may not be reached, or is unknown.
        """


class Refused(Exception):
    """A request that is not allowed or cannot be served: status line and text."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True)
class AllowList:
    """Listed hosts, on listed ports; a private address only if it is itself listed.

    Args:
        hosts: Host names, ``*.suffix``, addresses or CIDR ranges.
        ports: Ports that may be reached.

    Raises:
        ConfigError: An entry is none of these.

    Example:
        >>> AllowList(("*.debian.org",)).allows("deb.debian.org")
        True
    """

    hosts: tuple[str, ...]
    ports: tuple[int, ...] = _PORTS
    _names: frozenset[str] = field(init=False)
    _networks: tuple[_Network, ...] = field(init=False)

    def __post_init__(self) -> None:
        names, networks = set(), []
        for entry in self.hosts:
            try:
                networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                name = entry.lower().rstrip(".")
                bare = name.removeprefix("*.")
                if not bare or set(bare) & set("*/:@ "):
                    raise ConfigError(
                        f"allowed host {entry!r} is no host name, *.suffix, address or range"
                    ) from None
                names.add(name)
        object.__setattr__(self, "_names", frozenset(names))
        object.__setattr__(self, "_networks", tuple(networks))

    def allows(self, host: str) -> bool:
        """Whether a host, as named in a request, is listed."""
        address = _address(host)
        if address is not None:
            return self.lists(address)
        name = host.lower().rstrip(".")
        parents = name.split(".")[1:]
        suffixes = ("*." + ".".join(parents[i:]) for i in range(len(parents)))
        return name in self._names or any(suffix in self._names for suffix in suffixes)

    def lists(self, address: _Address) -> bool:
        """Whether an address is listed as an address or in a range."""
        return any(address in network for network in self._networks)

    def resolve(self, host: str, port: int) -> tuple[str, int]:
        """See ``Policy.resolve``."""
        if not self.allows(host):
            raise Refused("403 Forbidden", f"{host} is not on this sandbox's allow-list")
        if port not in self.ports:
            ports = " and ".join(map(str, self.ports))
            raise Refused("403 Forbidden", f"port {port} is closed; only {ports} may be reached")
        for place, address in _look_up(host, port):
            if address.is_global and not address.is_multicast or self.lists(address):
                return place, port
        raise Refused("403 Forbidden", f"{host} leads to a private address, which is not listed")


class Outside:
    """Whatever this machine reaches, on any port, but the machine itself, its link, its cloud.

    Cloud machines are told their credentials by link-local and a few other addresses; a model
    server or a dashboard listens on an address of the machine.
    """

    def resolve(self, host: str, port: int) -> tuple[str, int]:
        """See ``Policy.resolve``."""
        for place, address in _look_up(host, port):
            near = address.is_unspecified or address.is_link_local or address.is_multicast
            if not near and address not in _METADATA and not _is_own(address):
                return place, port
        raise Refused("403 Forbidden", f"{host} leads to the machine around this sandbox")


class Proxy:
    """Serves one sandbox until it is closed.

    Args:
        listener_fd: A listening socket inside the sandbox's network namespace; taken over.
        allowed: What may be reached.
    """

    def __init__(self, listener_fd: int, allowed: Policy) -> None:
        self._listener = socket.socket(fileno=listener_fd)
        self._allowed = allowed
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._slots = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._closed = False
        threading.Thread(target=self._accept, name="sprout-proxy", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._slots.acquire(blocking=False):
                client.close()
                continue
            thread = threading.Thread(
                target=self._serve, args=(client,), name="sprout-proxy", daemon=True
            )
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, contextlib.suppress(OSError):
                if not self._track(client):
                    return
                client.settimeout(_CONNECT_S)
                try:
                    head, body = _read_head(client)
                    host, port, forward = _parse(head)
                    place = self._allowed.resolve(host, port)
                    try:
                        server = socket.create_connection(place, timeout=_CONNECT_S)
                    except OSError as error:
                        raise Refused(
                            "502 Bad Gateway", f"{host}:{port} cannot be reached: {error}"
                        ) from error
                except Refused as refusal:
                    _answer(client, refusal)
                    return
                with server:
                    if not self._track(server):
                        return
                    if forward is None:
                        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                        server.sendall(body)
                    else:
                        server.sendall(forward + body)
                    _splice(client, server)
                    self._forget(server)
        finally:
            self._forget(client)
            self._slots.release()

    def _track(self, connection: socket.socket) -> bool:
        with self._lock:
            if not self._closed:
                self._open.add(connection)
            return not self._closed

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def close(self) -> None:
        """End all connections. Idempotent."""
        with self._lock:
            self._closed = True
            connections = [*self._open, self._listener]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def proxy_variables(port: int, hostname: str) -> dict[str, str]:
    """Return the variables that point programs at the proxy, in both cases.

    Args:
        port: Where it listens inside.
        hostname: The sandbox's own name, which needs no proxy.
    """
    found = dict.fromkeys(("http_proxy", "https_proxy"), f"http://127.0.0.1:{port}")
    found["no_proxy"] = f"localhost,127.0.0.1,127.0.1.1,0.0.0.0,::1,{hostname}"
    return {**found, **{name.upper(): value for name, value in found.items()}}


def _address(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _look_up(host: str, port: int) -> Iterator[tuple[str, _Address]]:
    """Yield a host's addresses: as they are connected to, and as they are judged."""
    # getaddrinfo ends a name at a NUL, and a suffix that is allowed could stand behind it.
    if not _NAME.fullmatch(host):
        raise Refused("400 Bad Request", f"{host!a} is no host name")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Refused("502 Bad Gateway", f"{host} cannot be resolved: {error}") from error
    for _, _, _, _, place in found:
        address = ipaddress.ip_address(str(place[0]).partition("%")[0])
        yield str(place[0]), _inner(address)


def _inner(address: _Address) -> _Address:
    """Return the address that the network reaches by this one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address
    return address


def _is_own(address: _Address) -> bool:
    """Whether an address is this machine's, or nobody can tell: no other can be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    data = bytearray()
    while b"\r\n\r\n" not in data:
        piece = client.recv(_PIECE)
        if not piece or len(data) > _HEAD_BYTES:
            raise Refused("400 Bad Request", "no complete HTTP request")
        data += piece
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    return head, body


def _parse(head: bytes) -> tuple[str, int, bytes | None]:
    """Return host, port, and the head to pass on (None for CONNECT)."""
    line, *fields = head.decode("latin-1").split("\r\n")
    try:
        method, target, version = line.split(" ")
        if method == "CONNECT":
            parts = urlsplit(f"//{target}")
            return str(parts.hostname or ""), parts.port or 443, None
        parts = urlsplit(target)
        port = parts.port or 80
    except ValueError:
        raise Refused("400 Bad Request", "malformed request") from None
    if parts.scheme != "http" or not parts.hostname:
        raise Refused("400 Bad Request", "this is a proxy: ask for http://HOST/PATH or CONNECT")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # One request per connection: a second one could name another host.
    dropped = ("proxy-", "connection:", "keep-alive:", "host:")
    kept = [text for text in fields if not text.lower().startswith(dropped)]
    host = parts.netloc.rpartition("@")[2]
    lines = [f"{method} {path} {version}", f"Host: {host}", *kept, "Connection: close"]
    return parts.hostname, port, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def _answer(client: socket.socket, refusal: Refused) -> None:
    body = f"sprout: {refusal.text}\n".encode()
    head = (
        f"HTTP/1.1 {refusal.status}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    client.sendall(head.encode() + body)


def _splice(client: socket.socket, server: socket.socket) -> None:
    """Pass bytes both ways until both sides have ended, or nothing moved for long."""
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        while selector.get_map() and (ready := selector.select(_IDLE_S)):
            for key, _ in ready:
                source, sink = key.fileobj, key.data
                assert isinstance(source, socket.socket)
                piece = source.recv(_PIECE)
                if piece:
                    sink.sendall(piece)
                else:
                    selector.unregister(source)
                    sink.shutdown(socket.SHUT_WR)
