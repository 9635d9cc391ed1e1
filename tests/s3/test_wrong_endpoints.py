"""Endpoints that are not what the configuration says: one clear sentence, and misses while the engine runs on."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from object_harness import Place, keys_of, load, store

from tiering.errors import PermanentTierError, TierError
from tiering.testing.fault_proxy import FaultProxy
from tiering.testing.http_faults import HttpFault
from tiering.testing.object_servers import free_ports

pytestmark = pytest.mark.parametrize("place", ["s3fs-moto", "obstore-moto"], indirect=True)

ANOTHER_REGION = "the bucket is in another region"


class WebPages(BaseHTTPRequestHandler):
    """Answers everything with a web page."""

    protocol_version = "HTTP/1.1"

    def __init__(self, status: int, *arguments: Any) -> None:
        self.status = status
        super().__init__(*arguments)

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        page = b"<!doctype html><html><body>Welcome!</body></html>"
        self.send_response(self.status)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    do_GET = do_PUT = do_POST = answer  # noqa: N815  (named by the library)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@contextmanager
def web_server(status: int, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Yield host and port of a web server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(WebPages, status))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *arguments: None
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def open_and_close(place: Place, **settings: Any) -> None:
    async with place.opened(**settings):
        pass


def refusal(place: Place, **settings: Any) -> str:
    """Open a tier that refuses to start; return why."""
    with pytest.raises(PermanentTierError) as caught:
        asyncio.run(open_and_close(place, **settings))
    return str(caught.value)


def warning(place: Place, caplog: pytest.LogCaptureFixture, **settings: Any) -> str:
    """Open a tier that starts without its store; return its warning."""
    asyncio.run(open_and_close(place, retry={"attempts": 1}, **settings))
    (record,) = [record for record in caplog.records if "starts without its store" in record.message]
    return record.message


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [
        (301, "PermanentRedirect", ANOTHER_REGION),
        (307, "TemporaryRedirect", ANOTHER_REGION),
        (400, "AuthorizationHeaderMalformed", ANOTHER_REGION),
        (400, "IllegalLocationConstraintException", ANOTHER_REGION),
        (400, "InvalidRequest", "perhaps another signature version is wanted"),
        (403, "InvalidAccessKeyId", "the access key is not known there"),
        (403, "SignatureDoesNotMatch", "the secret key does not fit the access key"),
        (403, "AccessDenied", "the credentials do not allow this"),
        (404, "NoSuchBucket", "there is no such bucket"),
    ],
)
def test_what_is_refused(place: Place, status: int, code: str, sentence: str) -> None:
    assert place.server is not None
    with FaultProxy(place.server.endpoint_url) as proxy:
        proxy.add(HttpFault(status=status, code=code))
        said = refusal(place, endpoint_url=proxy.url)
        assert said.startswith(f"bucket kvcache at {proxy.url}: PUT {place.directory}/")
        assert sentence in said
        assert len(proxy.requests) <= 4


def test_a_bucket_that_moves_while_an_engine_runs_costs_misses(place: Place) -> None:
    assert place.server is not None

    async def scenario(proxy: FaultProxy) -> None:
        async with place.through(proxy).opened() as tier:
            assert await store(tier, 1) == [True]
            with proxy.during(HttpFault(status=301, code="PermanentRedirect")):
                # The answer to a HEAD has no code.
                for call in (load(tier, 1), store(tier, 2), tier.lookup(keys_of(3))):
                    with pytest.raises(TierError, match=f"at {proxy.url}: .*{ANOTHER_REGION}"):
                        await call
            assert await load(tier, 1) == [True]

    with FaultProxy(place.server.endpoint_url) as proxy:
        asyncio.run(scenario(proxy))


def test_skewed_clocks(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    assert place.server is not None
    with FaultProxy(place.server.endpoint_url) as proxy:
        proxy.add(HttpFault(status=403, code="RequestTimeTooSkewed"))
        assert "clocks of this machine and of the service" in warning(place, caplog, endpoint_url=proxy.url)


@pytest.mark.parametrize("status", [400, 404, 405, 501])
def test_a_web_server_that_refuses(place: Place, status: int) -> None:
    with web_server(status) as address:
        said = refusal(place, endpoint_url=f"http://{address}")
        assert f"kvcache at http://{address}: PUT" in said
        assert "perhaps that is no object store" in said


def test_a_web_server_that_is_content_with_anything(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with web_server(200) as address:
        settings = {"endpoint_url": f"http://{address}"}
        say = (
            refusal(place, **settings) if place.settings["client"] == "obstore" else warning(place, caplog, **settings)
        )
        assert "perhaps that is no object store" in say


def test_https_where_http_is_spoken(place: Place) -> None:
    assert place.server is not None
    said = refusal(place, endpoint_url=place.server.endpoint_url.replace("http:", "https:"))
    assert "no TLS is spoken there" in said


def test_http_where_https_is_spoken(place: Place, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture) -> None:
    with web_server(200, tls) as address:
        assert "perhaps endpoint_url should begin with https://" in warning(
            place, caplog, endpoint_url=f"http://{address}"
        )


def test_a_certificate_that_nobody_vouches_for(place: Place, tls: ssl.SSLContext) -> None:
    with web_server(200, tls) as address:
        assert "TLS certificate is not trusted" in refusal(place, endpoint_url=f"https://{address}")


@pytest.mark.parametrize("where", ["port", "host"])
def test_nobody_there(place: Place, caplog: pytest.LogCaptureFixture, where: str) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}" if where == "port" else "http://no-such-host.invalid"
    said = warning(place, caplog, endpoint_url=url)
    assert f"kvcache at {url}: PUT" in said
    assert ("nobody listens there" if where == "port" else "host name is not known") in said
