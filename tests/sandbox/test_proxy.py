"""The allow-list: what it lets through, from rules to real connections out of a sandbox."""

from __future__ import annotations

import contextlib
import http.server
import ipaddress
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from sprout_env.errors import ConfigError
from sprout_env.sandbox import ShellState
from sprout_env.sandbox.native import proxy
from sprout_env.sandbox.native.proxy import AllowList, Outside, Proxy, Refused, proxy_variables
from sprout_env.sandbox.sandbox import PATH
from tests.sandbox.conftest import StartSandbox, run


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("pypi.org", True),
        ("PyPI.org.", True),
        ("evil-pypi.org", False),
        ("x.pypi.org", False),
        ("deb.debian.org", True),
        ("a.b.debian.org", True),
        ("debian.org", False),
        ("notdebian.org", False),
        ("192.0.2.7", True),
        ("192.0.3.7", False),
        ("198.51.100.1", True),
        ("[2001:db8::1]", True),
        ("2001:db9::1", False),
        ("", False),
        ("0x7f.1", False),
    ],
)
def test_which_hosts_are_listed(host: str, allowed: bool) -> None:
    rules = ("pypi.org", "*.debian.org", "192.0.2.0/24", "198.51.100.1", "2001:db8::/32")
    assert AllowList(rules).allows(host) is allowed


@pytest.mark.parametrize("entry", ["", "*", "*.", "a/b", "http://x", "host:443", "a b", "*.*.org"])
def test_an_odd_entry_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError):
        AllowList((entry,))


def test_private_addresses_need_to_be_listed_as_such() -> None:
    with pytest.raises(Refused, match="private"):
        AllowList(("localhost",)).resolve("localhost", 80)
    assert AllowList(("localhost", "127.0.0.0/8")).resolve("localhost", 443)[0] == "127.0.0.1"
    with pytest.raises(Refused, match="port 22"):
        AllowList(("127.0.0.1",)).resolve("127.0.0.1", 22)
    with pytest.raises(Refused, match="not on"):
        AllowList(()).resolve("127.0.0.1", 80)
    with pytest.raises(Refused, match="private"):
        AllowList(("64:ff9b::7f00:1",)).resolve("64:ff9b::127.0.0.1", 80)
    with pytest.raises(Refused, match="resolved"):
        AllowList(("no.such.invalid",)).resolve("no.such.invalid", 80)


@pytest.mark.parametrize(
    "host", ["localhost\0.debian.org", "127.0.0.1\0.debian.org", "a b.debian.org"]
)
def test_a_name_ends_where_it_is_judged(host: str) -> None:
    """A resolver ends a name at its first NUL; what stands behind it must not open the list."""
    rules = AllowList(("*.debian.org", "127.0.0.0/8"))
    for policy in (rules, Outside()):
        with pytest.raises(Refused, match="no host name"):
            policy.resolve(host, 80)


def test_what_cannot_be_told_counts_as_the_machine() -> None:
    """An agent that has used up our descriptors has not opened the way to our own services."""
    few = resource.getrlimit(resource.RLIMIT_NOFILE)
    address = ipaddress.ip_address("203.0.113.9")
    assert not proxy._is_own(address)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, few[1]))
    try:
        assert proxy._is_own(address)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, few)


def test_both_cases_of_the_variables() -> None:
    names = proxy_variables(3128, "box")
    assert names["http_proxy"] == names["HTTPS_PROXY"] == "http://127.0.0.1:3128"


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "0x7f.1",
     "169.254.169.254", "fe80::1", "224.0.0.1", socket.gethostname(), "64:ff9b::a9fe:a9fe",
     "64:ff9b::127.0.0.1", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16"],
)  # fmt: skip
def test_public_is_not_the_machine_around(host: str) -> None:
    with pytest.raises(Refused, match=r"around this sandbox|resolved"):
        Outside().resolve(host, 80)


def test_public_is_everything_else() -> None:
    for place in ("203.0.113.9", "10.1.2.3", "2001:db8::7"):
        assert Outside().resolve(place, 8443) == (place, 8443)


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"{self.path} for {self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    """A web server on the host's loopback; returns its port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_address[1]
        made.shutdown()


@pytest.fixture
def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def ask(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
            if b"established" in piece:
                connection.sendall(b"GET /tunnel HTTP/1.0\r\nHost: inner\r\n\r\n")
        return answer


def test_requests_and_tunnels(listener: socket.socket, server: int) -> None:
    port = listener.getsockname()[1]
    proxy = Proxy(listener.detach(), AllowList(("127.0.0.1",), ports=(server,)))
    try:
        url = f"http://127.0.0.1:{server}/a?b=c".encode()
        got = ask(port, b"GET " + url + b" HTTP/1.1\r\nHost: spoofed\r\nProxy-X: 1\r\n\r\n")
        assert b"200" in got.splitlines()[0]
        assert got.endswith(f"/a?b=c for 127.0.0.1:{server}".encode())
        tunnel = ask(port, f"CONNECT 127.0.0.1:{server} HTTP/1.1\r\n\r\n".encode())
        assert tunnel.endswith(b"/tunnel for inner")
        for request in (
            b"CONNECT 127.0.0.2:80 HTTP/1.1\r\n\r\n",
            b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n\r\n",
            b"GET http://example.org/ HTTP/1.1\r\n\r\n",
        ):
            said = ask(port, request)
            assert said.startswith(b"HTTP/1.1 403 Forbidden"), said
            assert b"sprout: " in said
        for broken in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"nonsense\r\n\r\n",
            b"CONNECT x:y HTTP/1.1\r\n\r\n",
        ):
            assert ask(port, broken).startswith(b"HTTP/1.1 400"), broken
    finally:
        proxy.close()
        proxy.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=2)


@pytest.mark.root
def test_out_of_a_sandbox(
    start_sandbox: StartSandbox, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sprout_env.sandbox.native.driver.AllowList",
        lambda hosts: AllowList(hosts, ports=(server,)),
    )
    sandbox = start_sandbox(network="allowlist", hosts=("127.0.0.1",))
    fetch = "python3 -c 'import urllib.request as u, sys; print(u.urlopen(sys.argv[1]).read())' "
    direct = sandbox.run(f"unset http_proxy; {fetch} http://127.0.0.1:{server}/", timeout_s=30)
    assert direct.exit_code != 0, "the host's loopback is not the sandbox's"
    # The variables exempt the sandbox's own loopback, so this asks the proxy by hand.
    through = f"no_proxy= NO_PROXY= {fetch} http://127.0.0.1:{server}/deep"
    assert "/deep for 127.0.0.1" in run(sandbox, through)
    refused = sandbox.run(f"no_proxy= {fetch} http://example.org/", timeout_s=30)
    assert b"403" in refused.stderr
    sandbox.pause()
    sandbox.resume()
    assert "/deep" in run(sandbox, through)


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A web server on another machine: a network namespace with an address of its own."""
    page = f"cd /tmp; exec {sys.executable} -m http.server 8080 --bind 198.18.7.2"
    ready = "ip link set lo up; until ip addr add 198.18.7.2/30 dev there 2>/dev/null; do "
    ready += "sleep 0.1; done; ip link set there up; "
    with subprocess.Popen(["unshare", "-n", "sh", "-c", ready + page]) as machine:
        try:
            time.sleep(0.3)
            link = f"link add here0718 type veth peer name there netns {machine.pid}"
            for told in (link, "addr add 198.18.7.1/30 dev here0718", "link set here0718 up"):
                subprocess.run(["ip", *told.split()], check=True)
            for _ in range(100):
                with contextlib.suppress(OSError), socket.create_connection(("198.18.7.2", 8080)):
                    break
                time.sleep(0.1)
            yield "198.18.7.2:8080"
        finally:
            machine.kill()


@pytest.mark.root
def test_public_is_the_outside_and_not_the_machine(
    start_sandbox: StartSandbox, server: int, elsewhere: str
) -> None:
    fetch = "python3 -c 'import urllib.request as u, sys; print(u.urlopen(sys.argv[1]).status)' "
    first, second = start_sandbox(network="public"), start_sandbox(network="public")
    # Such a state is what an episode's and a verifier's commands begin with.
    state = ShellState("/", {"PATH": PATH}, is_first=True)
    done = first.run(f"{fetch} http://{elsewhere}/", timeout_s=30, state=state)
    assert done.stdout == b"200\n", done
    for place in (f"127.0.0.1:{server}", f"198.18.7.1:{server}", "169.254.169.254"):
        said = first.run(f"no_proxy= NO_PROXY= {fetch} http://{place}/", timeout_s=30)
        assert b"403" in said.stderr, said
    direct = f"env -u http_proxy -u HTTP_PROXY {fetch} http://{elsewhere}/"
    assert b"unreachable" in first.run(direct, timeout_s=30).stderr
    # The same port in both: neither is in the other's way, and their own need no proxy.
    serve = "mkdir -p /srv && cd /srv && (python3 -m http.server 8000 >/dev/null 2>&1 &) && sleep 1"
    for sandbox in (first, second):
        own = f"{serve} && {fetch} http://localhost:8000/ && {fetch} http://sandbox:8000/"
        assert run(sandbox, own) == "200\n200\n"


@pytest.mark.root
def test_without_an_allow_list_there_is_no_way_out(
    start_sandbox: StartSandbox, server: int
) -> None:
    sandbox = start_sandbox()
    assert "proxy" not in run(sandbox, "env").lower()
    for place in ("127.0.0.1", "::1"):
        result = sandbox.run(
            f"python3 -c 'import socket; socket.create_connection((\"{place}\", {server}), 5)'",
            timeout_s=30,
        )
        assert b"refused" in result.stderr
    route = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 5)'"
    assert b"unreachable" in sandbox.run(route, timeout_s=30).stderr


@pytest.mark.root
def test_the_hosts_network_is_explicit(start_sandbox: StartSandbox, server: int) -> None:
    sandbox = start_sandbox(network="host")
    fetch = f"python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:{server}/h\").read())'"
    assert "/h for" in run(sandbox, fetch)
