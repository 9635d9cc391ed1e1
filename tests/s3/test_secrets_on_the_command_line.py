"""What the command prints of a configuration with secrets in it: everything but them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from object_harness import Place

SECRETS = ("tell-nobody-1", "tell-nobody-2", "tell-nobody-3", "tell-nobody-4", "tell-nobody-5")
WITH_SECRETS = {
    "access_key_id": SECRETS[0],
    "secret_access_key": SECRETS[1],
    "session_token": SECRETS[2],
    "storage_options": {"requester_pays": SECRETS[3], "config_kwargs": {"user_agent_extra": SECRETS[4]}},
}


class CommandLine:
    def __init__(self, directory: Path) -> None:
        self._file = directory / "tiering.yaml"

    def run(self, tier: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a sub-command on a configuration with ``tier``; none of the secrets may be printed."""
        self._file.write_text(json.dumps({"cpu_bytes_to_use": "1MiB", "secondary_tier_configs": [tier]}))
        command = [str(self._file) if argument == "FILE" else argument for argument in arguments]
        done = subprocess.run(
            [sys.executable, "-m", "tiering", *command],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"AWS_EC2_METADATA_DISABLED": "true"},
        )
        printed = done.stdout + done.stderr
        assert not [secret for secret in SECRETS if secret in printed], printed
        return done


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.mark.parametrize("form", ["text", "json"])
def test_show(command_line: CommandLine, form: str) -> None:
    tier = {"type": "s3", "bucket": "kv"} | WITH_SECRETS
    done = command_line.run(tier, "config", "show", "FILE", "--format", form)
    assert done.returncode == 0
    assert done.stdout.count("**********") == len(SECRETS)


def test_a_start_that_is_refused(command_line: CommandLine, place: Place) -> None:
    done = command_line.run(place.settings | WITH_SECRETS, "replay", "--config", "FILE", "--generate", "1")
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "kvcache" in done.stderr or place.directory in done.stderr


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_settings_that_the_client_library_refuses(command_line: CommandLine, place: Place, client: str) -> None:
    refused = {"client": client, "storage_options": {"config_kwargs": {"nonsense": SECRETS[3]}}}
    done = command_line.run(place.settings | refused, "replay", "--config", "FILE", "--generate", "1")
    assert done.returncode == 1
    assert "error: bucket kvcache at " in done.stderr
    assert "refuses its settings" in done.stderr or "UnknownConfigurationKeyError" in done.stderr
    assert "Traceback" not in done.stderr
