"""The proxy does what it is told, and otherwise nothing."""

from __future__ import annotations

import http.client
import http.server
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tiering.testing.fault_proxy import FaultProxy
from tiering.testing.http_faults import HttpFault
from tiering.testing.resource_watch import ResourceWatch

CONTENT = bytes(range(256)) * 40


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers a GET with `CONTENT`, and a PUT with what was sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(CONTENT)

    def do_HEAD(self) -> None:
        self.answer(CONTENT)

    def do_PUT(self) -> None:
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Keep quiet."""


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with (
        ResourceWatch(),
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server,
    ):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with FaultProxy(f"http://127.0.0.1:{server.server_port}") as proxy:
                yield proxy
        finally:
            server.shutdown()
            thread.join()


def connect(proxy: FaultProxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=10)


def ask(proxy: FaultProxy, method: str, path: str = "/", body: bytes | None = None) -> tuple[int, bytes]:
    connection = connect(proxy)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_what_is_not_concerned_passes(proxy: FaultProxy) -> None:
    proxy.add(HttpFault("DELETE", status=500))
    proxy.add(HttpFault(path="/elsewhere", status=500))
    assert ask(proxy, "GET") == (200, CONTENT)
    assert ask(proxy, "HEAD") == (200, b"")
    assert ask(proxy, "PUT", "/x", CONTENT) == (200, CONTENT)
    assert [request.method for request in proxy.requests] == ["GET", "HEAD", "PUT"]
    assert (proxy.count("PUT", "/x"), proxy.count("PUT", "/y")) == (1, 0)


def test_one_connection_serves_many_requests(proxy: FaultProxy) -> None:
    connection = connect(proxy)
    for _ in range(5):
        connection.request("GET", "/")
        assert connection.getresponse().read() == CONTENT
    assert proxy.num_connections == 1
    connection.close()


def test_errors_come_as_often_as_told_the_last_fault_first(proxy: FaultProxy) -> None:
    proxy.add(HttpFault("GET", status=500, code="InternalError"))
    proxy.add(HttpFault("GET", times=2, status=503))
    answers = [ask(proxy, "GET") for _ in range(4)]
    assert [status for status, _ in answers] == [503, 503, 500, 500]
    assert b"<Code>SlowDown</Code>" in answers[0][1]
    assert b"<Code>InternalError</Code>" in answers[2][1]
    proxy.clear()
    assert ask(proxy, "GET")[0] == 200
    with proxy.during(HttpFault("HEAD", status=404)):
        assert ask(proxy, "HEAD") == (404, b"")
    assert ask(proxy, "HEAD")[0] == 200


def test_bodies_are_cut_spoilt_and_replaced(proxy: FaultProxy) -> None:
    with proxy.during(HttpFault(cut_after=100)), pytest.raises(http.client.IncompleteRead) as caught:
        ask(proxy, "GET")
    assert caught.value.partial == CONTENT[:100]
    with proxy.during(HttpFault(flip_at=300)):
        _, body = ask(proxy, "GET")
        assert [at for at in range(len(CONTENT)) if body[at] != CONTENT[at]] == [300]
    with proxy.during(HttpFault(replace_body=b"other")):
        assert ask(proxy, "GET") == (200, b"other")


def test_resets_stalls_and_pauses(proxy: FaultProxy) -> None:
    with proxy.during(HttpFault(reset=True)), pytest.raises(ConnectionError):
        ask(proxy, "GET")
    with proxy.during(HttpFault(stall=True)):
        connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=0.1)
        connection.request("GET", "/")
        with pytest.raises(TimeoutError):
            connection.getresponse()
        connection.close()
    begun = time.monotonic()
    with proxy.during(HttpFault(delay_seconds=0.1)):
        assert ask(proxy, "GET") == (200, CONTENT)
    with proxy.during(HttpFault(bytes_per_second=len(CONTENT) * 10)):
        assert ask(proxy, "GET") == (200, CONTENT)
    assert time.monotonic() - begun >= 0.15


def test_who_expects_a_100_gets_one_before_the_body_is_sent(proxy: FaultProxy) -> None:
    with socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2])), timeout=10) as connection:
        connection.sendall(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hello")
        answer = b""
        while not answer.endswith(b"hello"):
            answer += connection.recv(1000)
        assert answer.startswith(b"HTTP/1.1 200")


def test_chunked_bodies_arrive_whole(proxy: FaultProxy) -> None:
    connection = connect(proxy)
    connection.request("PUT", "/", iter([b"one ", b"two"]), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert connection.getresponse().read() == b"one two"
    connection.close()


def test_waiting_for_requests_has_an_end(proxy: FaultProxy) -> None:
    ask(proxy, "GET")
    proxy.wait_for("GET", 1)
    with pytest.raises(TimeoutError, match="1 of 2 GET"):
        proxy.wait_for("GET", 2, timeout_seconds=0.01)


def test_a_server_that_is_gone_is_a_broken_connection() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with FaultProxy(f"http://127.0.0.1:{nobody.getsockname()[1]}") as proxy, pytest.raises(ConnectionError):
            ask(proxy, "GET")
