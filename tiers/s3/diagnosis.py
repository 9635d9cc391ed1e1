"""What a failure most probably means, in words for the person who can mend it.

Texts of errors are searched here, and never shown: services repeat access keys and signatures in what they answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["cannot_pass", "diagnosed_answer", "diagnosed_failure"]

_ANOTHER_REGION = "the bucket is in another region; see region and endpoint_url"
_NO_OBJECT_STORE = "perhaps that is no object store; see endpoint_url"
_NO_TLS = "no TLS is spoken there; perhaps endpoint_url should begin with http://"
_UNTRUSTED = "its TLS certificate is not trusted on this machine"

_UNKNOWN_OPTION = "the client library does not know a key in storage_options"
_NO_ACCOUNT = "account_name is missing in storage_options"
_BAD_ACCOUNT_KEY = "account_key in storage_options is no key"
_NO_SERVICE_ACCOUNT = "the file service_account in storage_options cannot be opened"
_BAD_SERVICE_ACCOUNT = "the service account in storage_options cannot be read"

_NEVER_WITHOUT_A_CODE = {400, 404, 405, 500, 501}

_OF_CODE = {
    "301": _ANOTHER_REGION,
    "307": _ANOTHER_REGION,
    "AccessDenied": "the credentials do not allow this",
    "AuthorizationHeaderMalformed": _ANOTHER_REGION,
    "AuthorizationQueryParametersError": _ANOTHER_REGION,
    "AuthenticationFailed": "the credentials are not accepted",
    "AuthorizationFailure": "the credentials do not allow this",
    "ContainerNotFound": "there is no such container",
    "ExpiredToken": "the credentials have expired",
    "IllegalLocationConstraintException": _ANOTHER_REGION,
    "InvalidAccessKeyId": "the access key is not known there",
    "InvalidRequest": "perhaps another signature version is wanted; see signature_version in storage_options",
    "NoSuchBucket": "there is no such bucket",
    "PermanentRedirect": _ANOTHER_REGION,
    "RequestTimeTooSkewed": "the clocks of this machine and of the service are too far apart",
    "SignatureDoesNotMatch": "the secret key does not fit the access key, or something on the way changes requests",
    "TemporaryRedirect": _ANOTHER_REGION,
}

_OF_TEXT = (
    (re.compile("CERTIFICATE_VERIFY_FAILED|CertificateError|InvalidCertificate"), _UNTRUSTED),
    (re.compile("WRONG_VERSION_NUMBER|InvalidContentType"), _NO_TLS),
    (re.compile("BareRedirect"), _ANOTHER_REGION),
    (re.compile("UnknownConfigurationKey"), _UNKNOWN_OPTION),
    (re.compile("MissingAccount"), _NO_ACCOUNT),
    (re.compile("InvalidAccessKey "), _BAD_ACCOUNT_KEY),
    (re.compile("OpenCredentials"), _NO_SERVICE_ACCOUNT),
    (re.compile("DecodeCredentials|DecodePem|InvalidKey"), _BAD_SERVICE_ACCOUNT),
    (re.compile("MissingEtag|Bad status line|UnexpectedMessage|Parse\\("), _NO_OBJECT_STORE),
    (re.compile("gaierror|DNSError|dns error"), "its host name is not known"),
    (re.compile("ConnectionRefusedError|ConnectionRefused|Connect call failed"), "nobody listens there"),
    (
        re.compile("reset by peer|ConnectionReset|Server disconnected|IncompleteMessage|connection closed"),
        "the connection broke; where it always does, perhaps endpoint_url should begin with https://",
    ),
)
_NO_WAITING_HELPS = {
    _ANOTHER_REGION,
    _NO_OBJECT_STORE,
    _NO_TLS,
    _UNTRUSTED,
    _UNKNOWN_OPTION,
    _NO_ACCOUNT,
    _BAD_ACCOUNT_KEY,
    _NO_SERVICE_ACCOUNT,
    _BAD_SERVICE_ACCOUNT,
}


def diagnosed_answer(code: str, status: int, doing: str) -> str | None:
    """Return what an answer means, or None where nothing more can be said.

    Args:
        code: S3 error code, or the status where the answer has none.
        status: HTTP status.
        doing: what was asked; the answer to a HEAD never has a code.
    """
    if code == str(status) and status in _NEVER_WITHOUT_A_CODE and not doing.startswith("HEAD"):
        return f"no error code came with it, {_NO_OBJECT_STORE}"
    return _OF_CODE.get(code)


def diagnosed_failure(error: BaseException) -> str | None:
    """Return what the failure of a connection means, or None."""
    text = "\n".join(repr(inner) for inner in _all_around(error))
    return next((meaning for pattern, meaning in _OF_TEXT if pattern.search(text)), None)


def cannot_pass(diagnosis: str | None) -> bool:
    """Whether a failure diagnosed so comes from the configuration, so that no waiting mends it."""
    return diagnosis in _NO_WAITING_HELPS


def _all_around(error: BaseException) -> Iterator[BaseException]:
    around: BaseException | None = error
    while around is not None:
        yield around
        around = around.__cause__ or around.__context__
