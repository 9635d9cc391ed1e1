"""What the documentation shows is what runs."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tiering.testing.object_servers import SeaweedServer

ROOT = Path(__file__).parents[2]


def test_the_embedding_example_brings_the_chunk_back(tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "embedding.py"))
    assert example["main"](str(tmp_path)) is True
    assert not list(Path("/dev/shm").glob(f"tiering_demo-{os.getpid()}*"))


def test_the_readme_shows_the_embedding_example() -> None:
    example = (ROOT / "examples" / "embedding.py").read_text()
    shown = example[example.index("import os") :].rstrip()
    assert f"```python\n{shown}\n```" in (ROOT / "README.md").read_text()


def test_the_main_job_finds_in_the_bucket_what_the_first_process_stored() -> None:
    if not SeaweedServer.is_installed():
        pytest.skip("no SeaweedFS here")
    script = (
        "import sys; sys.path.insert(0, 'examples'); import run_replay; "
        "sys.exit(run_replay.main(('replay', '--generate', '30', '--row-bytes', '64KiB', '--format', 'json')))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(life[life.index("{") :]) for life in done.stdout.split("== ")[1:])
    assert (first["hits"]["s3"], first["mismatches"], second["mismatches"]) == (0, 0, 0)
    assert second["hits"]["s3"] > 0
    assert second["prefix_hits"] > first["prefix_hits"]


def test_every_public_name_is_where_the_package_says() -> None:
    import tiering

    for name in tiering.__all__:
        assert getattr(tiering, name).__name__ == name
