"""What the documentation shows is what runs."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_embedding_example_brings_the_chunk_back(tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "embedding.py"))
    assert example["main"](str(tmp_path)) is True


def test_the_readme_shows_the_embedding_example() -> None:
    example = (ROOT / "examples" / "embedding.py").read_text()
    shown = example[example.index("from dataclasses") :].rstrip()
    assert f"```python\n{shown}\n```" in (ROOT / "README.md").read_text()


def test_the_main_job_finds_on_the_disk_what_the_first_process_stored() -> None:
    script = (
        "import sys; sys.path.insert(0, 'examples'); import run_replay; "
        "sys.exit(run_replay.main(('replay', '--generate', '40', '--row-bytes', '64KiB', '--format', 'json')))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("== second process")
    assert '"disk": 0' in first.split('"bytes"')[0]
    assert '"disk": 0' not in second.split('"bytes"')[0]


def test_every_public_name_is_where_the_package_says() -> None:
    import tiering

    for name in tiering.__all__:
        assert getattr(tiering, name).__name__ == name
