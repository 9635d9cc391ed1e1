"""One meaning for the errors of all client libraries: absent, already there, refused, may pass, or will not pass.

The client libraries raise several families each, and wrap them into one another; here they are told apart by what they
carry (an S3 error code, an HTTP status, an errno), without importing any of the libraries.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tiering.errors import PermanentTierError, TemporaryTierError, TierError
from tiers.s3.diagnosis import cannot_pass, diagnosed_answer, diagnosed_failure

__all__ = [
    "AccessRefusedError",
    "ObjectAbsentError",
    "ObjectDamagedError",
    "ObjectExistsError",
    "opening",
    "translated",
]


class ObjectAbsentError(PermanentTierError):
    """There is no object of this name, or no place to put it."""


class ObjectExistsError(PermanentTierError):
    """There is an object of this name, and it was not to be replaced."""


class ObjectDamagedError(PermanentTierError):
    """What lies under the name cannot be a chunk of ours; the message says why."""


class AccessRefusedError(PermanentTierError):
    """The service does not take the credentials, or does not allow this; new credentials may help."""


_ABSENT = {"BlobNotFound", "NoSuchKey", "NoSuchUpload", "NotFound", "404"}
_EXISTS = {"BlobAlreadyExists", "PreconditionFailed", "412"}
_REFUSED = {
    "400",  # a HEAD has no body, so an expired token comes as a bare 400
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidToken",
    "TokenRefreshRequired",
}
_REFUSED_STATUS = {401, 403}
_MAY_PASS = {
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeTooSkewed",  # clocks get set
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "XAmzContentSHA256Mismatch",
}
_PERMANENT_ERRNOS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR}
_NO_SUCH_RANGE = 416
_MAY_PASS_STATUS = {408, 409, 425, 429}
_NETWORK_FAMILIES = ("aiohttp", "botocore.exceptions", "aiobotocore", "obstore", "requests", "urllib3", "httpx")
_NOT_TO_BE_MENDED = ("Credential", "Param", "Validation", "Config", "Region", "Profile", "InvalidPath", "NotSupported")
_STATUS_IN_TEXT = re.compile(r"status(?: code)?:? (\d{3})")
_CODE_IN_TEXT = re.compile(r"<Code>(\w+)</Code>")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a service answered: its error code, or the HTTP status as text where there is none."""

    code: str
    status: int


@contextmanager
def translated(doing: str, name: str) -> Iterator[None]:
    """Raise the errors of this module and of `tiering.errors` in place of a client library's own.

    Messages are made of codes, never of the text of an answer: services repeat signatures and access keys in it.

    Args:
        doing: what is tried, for the message.
        name: the object.
    """
    try:
        yield
    except TierError:
        raise
    except Exception as error:
        meaning = _meaning_of(error, f"{doing} {name}")
        if meaning is None:
            raise
        # The original is left out of the chain: its text would be logged with it.
        raise meaning from None


@contextmanager
def opening() -> Iterator[None]:
    """`translated` around the making of a client: whatever else a library raises then, it cannot use its settings.

    Raises:
        TierError: in any case of an error.
    """
    try:
        with translated("open", "a client"):
            yield
    except TierError:
        raise
    except Exception as error:
        raise PermanentTierError(
            f"the client library refuses its settings ({type(error).__name__}); see storage_options"
        ) from None


def _meaning_of(error: BaseException, what: str) -> Exception | None:
    for inner in _chain(error):
        answer = _answer_of(inner)
        if answer is not None:
            return _of_answer(answer, what)
    if isinstance(error, FileNotFoundError) or type(error).__name__ == "NotFoundError":
        return ObjectAbsentError(f"{what}: not found")
    if isinstance(error, FileExistsError) or type(error).__name__ in {"AlreadyExistsError", "PreconditionError"}:
        return ObjectExistsError(f"{what}: there is one already")
    family = type(error).__name__
    if isinstance(error, TimeoutError):
        return TemporaryTierError(f"{what}: no answer in time")
    if family in {"NoCredentialsError", "CredentialRetrievalError", "UnauthenticatedError"}:
        return AccessRefusedError(f"{what}: no credentials found ({family})")
    if isinstance(error, PermissionError) or family == "PermissionDeniedError":
        return AccessRefusedError(f"{what}: {family}")
    if type(error).__module__.startswith(_NETWORK_FAMILIES):
        return _of_failure(error, what)
    if isinstance(error, OSError):
        kind = PermanentTierError if error.errno in _PERMANENT_ERRNOS else TemporaryTierError
        return kind(f"{what}: {family}, {errno.errorcode.get(error.errno or 0, 'no errno')}")
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _answer_of(error: BaseException) -> _Answer | None:
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return _Answer(str(response["Error"].get("Code", status)), status)
    if type(error).__module__.startswith("obstore") or isinstance(error, FileNotFoundError):
        text = str(error)
        status_found, code_found = _STATUS_IN_TEXT.search(text), _CODE_IN_TEXT.search(text)
        if status_found or code_found:
            status = int(status_found[1]) if status_found else 0
            return _Answer(code_found[1] if code_found else str(status), status)
    if type(error).__module__.startswith("aiohttp") and type(error).__name__ != "ClientResponseError":
        return None  # broken connections carry a status, too, though no server has sent it
    for attribute in ("status", "status_code", "code"):
        value = getattr(error, attribute, None)
        if isinstance(value, int) and 300 <= value < 600:
            return _Answer(str(value), value)
    return None


def _of_answer(answer: _Answer, what: str) -> Exception:
    diagnosis = diagnosed_answer(answer.code, answer.status, what)
    status = f" ({answer.status})" if str(answer.status) != answer.code else ""
    text = f"{what}: answered {answer.code}{status}" + (f": {diagnosis}" if diagnosis else "")
    if answer.code in _ABSENT:
        return ObjectAbsentError(text)
    if answer.code in _EXISTS:
        return ObjectExistsError(f"{what}: there is one already")
    if answer.status == _NO_SUCH_RANGE:
        return ObjectDamagedError("it is empty")  # only ranges that begin at byte 0 are asked for
    if answer.code in _MAY_PASS:
        return TemporaryTierError(text)
    if answer.code in _REFUSED or answer.status in _REFUSED_STATUS:
        return AccessRefusedError(text)
    if answer.status in _MAY_PASS_STATUS or (answer.status >= 500 and answer.status != 501):
        return TemporaryTierError(text)
    return PermanentTierError(text)


def _of_failure(error: BaseException, what: str) -> TierError:
    family = type(error).__name__
    diagnosis = diagnosed_failure(error)
    permanent = cannot_pass(diagnosis) or any(word in family for word in _NOT_TO_BE_MENDED)
    kind = PermanentTierError if permanent else TemporaryTierError
    return kind(f"{what}: {family}" + (f": {diagnosis}" if diagnosis else ""))
