"""The AWS credential chain, asked anew each time a client is made."""

from __future__ import annotations

from functools import cache
from typing import Any

from tiers.s3.config import S3Config

__all__ = ["new_aws_session"]


def new_aws_session(config: S3Config) -> Any:
    """Return an aiobotocore session that has looked at nothing yet: no file, no environment variable."""
    from aiobotocore.session import AioSession  # noqa: PLC0415  (comes with one extra, and obstore can do without)

    session = AioSession(profile=config.profile) if config.profile else AioSession()
    # Reading the descriptions of all services takes a fifth of a second of the event loop; they never change.
    session.register_component("data_loader", _service_descriptions(session.get_config_variable("data_path")))
    if config.credentials_file is not None:
        session.set_config_variable("credentials_file", str(config.credentials_file))
    return session


@cache
def _service_descriptions(data_path: str | None) -> Any:
    from botocore.loaders import create_loader  # noqa: PLC0415

    return create_loader(data_path)
