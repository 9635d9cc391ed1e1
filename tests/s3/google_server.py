"""Google's object store as far as its XML interface goes, which is that of S3: moto, and a service account for it."""

from __future__ import annotations

import json
from functools import cached_property

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tiering.testing.object_servers import MotoServer


class GoogleServer(MotoServer):
    """Takes Google's tokens as it takes every signature, and has no conditional PUT in Google's terms."""

    kind = "google"

    @cached_property
    def service_account(self) -> str:
        """The JSON key of a service account, with which a client signs its tokens itself."""
        private_key = rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        return json.dumps(
            {
                "type": "service_account",
                "client_email": "engine@project.iam.gserviceaccount.com",
                "private_key_id": "1",
                "private_key": private_key.decode(),
            }
        )
