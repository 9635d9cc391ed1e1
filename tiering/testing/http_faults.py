"""What can go wrong with a request over HTTP, for a `tiering.testing.fault_proxy.FaultProxy` to bring about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["HttpFault", "ProxiedRequest"]


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """One request that has arrived.

    Attributes:
        method: such as ``GET``.
        path: with the query.
        headers: by lower-case name.
    """

    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class HttpFault:
    """What goes wrong, and with which requests. Without any effect set, it hides faults added before it.

    Attributes:
        method: of the requests concerned; None for all.
        path: what their path contains.
        matches: a further condition.
        times: how many of them it happens to; None for all.
        delay_seconds: a pause before anything else.
        status: answered in place of the server, with ``code`` in an S3 error document (none to HEAD).
        code: S3 error code.
        reset: the connection is reset, and the server never asked.
        stall: nothing is ever answered.
        cut_after: the connection ends after so many bytes of the answer's body.
        flip_at: the byte there, counted from the body's start, has a bit flipped.
        replace_body: the body of the answer, with its right length.
        bytes_per_second: how fast the answer's body is sent.
    """

    method: str | None = None
    path: str = ""
    matches: Callable[[ProxiedRequest], bool] | None = None
    times: int | None = None
    delay_seconds: float = 0.0
    status: int | None = None
    code: str = "SlowDown"
    reset: bool = False
    stall: bool = False
    cut_after: int | None = None
    flip_at: int | None = None
    replace_body: bytes | None = None
    bytes_per_second: float | None = None

    def concerns(self, request: ProxiedRequest) -> bool:
        """Whether it is to happen to ``request``."""
        return (
            self.method in {None, request.method}
            and self.path in request.path
            and (self.matches is None or self.matches(request))
        )
