"""Servers come up, go down, keep their port, and leave nothing behind."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from tiering.testing.object_servers import MotoServer, ObjectServer, ServerNotAvailableError, free_ports


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.skipif(not MotoServer.is_installed(), reason="the moto server is not installed")
def test_start_kill_and_start_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with MotoServer() as server:
        url = server.endpoint_url
        server.make_bucket("some-bucket")
        server.make_bucket("some-bucket")
        server.kill()
        assert not is_listening(server.port)
        server.kill()
        server.start()
        assert server.endpoint_url == url
        server.make_bucket("some-bucket")
    assert not is_listening(server.port)
    assert list(tmp_path.iterdir()) == []


class Failing(ObjectServer):
    kind = "failing"
    checks_signatures = False

    @classmethod
    def is_installed(cls) -> bool:
        return True

    def _command(self) -> list[str]:
        return ["sh", "-c", "echo what went wrong; exit 1"]


class Missing(Failing):
    @classmethod
    def is_installed(cls) -> bool:
        return False


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ServerNotAvailableError, match="what went wrong"):
        Failing().__enter__()
    with pytest.raises(ServerNotAvailableError, match="not installed"):
        Missing().__enter__()
    assert list(tmp_path.iterdir()) == []


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(20))) == 20
