"""The wheel builds, installs by itself and imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.wheel
def test_the_wheel_builds_and_imports(tmp_path: Path) -> None:
    """From a copy of the sources, so that nothing is left in the tree."""
    source = tmp_path / "source"
    source.mkdir()
    shutil.copytree(ROOT / "ckptmgr", source / "ckptmgr")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("ckptmgr-*.whl")
    target = tmp_path / "target"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    script = "import ckptmgr; print(ckptmgr.__file__, len(ckptmgr.__all__))"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert found.startswith(str(target))
    assert (target / "ckptmgr" / "py.typed").exists()
