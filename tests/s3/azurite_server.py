"""Azurite, the emulator of Azure's object store (npm ``azurite``), and a back door to what lies in it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import urllib.error
import urllib.parse
import urllib.request
from email.utils import formatdate
from xml.etree import ElementTree

from tiering.testing.object_servers import ObjectServer

_PROGRAM = "azurite-blob"


class AzuriteServer(ObjectServer):
    """One account, kept in memory; checks signatures. A container is what S3 calls a bucket."""

    kind = "azurite"
    checks_signatures = True
    access_key = "devstoreaccount1"
    # The emulator's, known to everybody.
    secret_key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    @classmethod
    def is_installed(cls) -> bool:
        return shutil.which(_PROGRAM) is not None

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.access_key}"

    def make_bucket(self, bucket: str) -> None:
        try:
            self.request("PUT", bucket, {"restype": "container"})
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    def request(self, method: str, path: str, query: dict[str, str] | None = None, body: bytes = b"") -> bytes:
        """Send a request signed by hand, and return the body of its answer."""
        query = query or {}
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        if method == "PUT" and not query:
            headers["x-ms-blob-type"] = "BlockBlob"
        length = str(len(body)) if body else ""
        signed_headers = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        resource = f"/{self.access_key}/{self.access_key}/{path}"
        resource += "".join(f"\n{name}:{value}" for name, value in sorted(query.items()))
        content_type = "application/octet-stream" if method == "PUT" else ""
        text = f"{method}\n\n\n{length}\n\n{content_type}\n\n\n\n\n\n\n{signed_headers}{resource}"
        digest = hmac.digest(base64.b64decode(self.secret_key), text.encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {self.access_key}:{base64.b64encode(digest).decode()}"
        if content_type:
            headers["Content-Type"] = content_type
        url = f"{self.endpoint_url}/{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        data = body if method == "PUT" else None
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())

    def names(self, bucket: str, prefix: str) -> list[str]:
        """List the objects whose names begin with ``prefix``."""
        query = {"restype": "container", "comp": "list", "prefix": prefix}
        return [str(found.text) for found in ElementTree.fromstring(self.request("GET", bucket, query)).iter("Name")]

    def _command(self) -> list[str]:
        options = ("--inMemoryPersistence", "--disableTelemetry", "--silent", "--skipApiVersionCheck")
        return [_PROGRAM, "--blobPort", str(self.port), *options]

    def _answers(self) -> bool:
        try:
            self.make_bucket("ready")
        except OSError:
            return False
        return True
