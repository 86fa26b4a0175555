"""Compiled functions outlive the process where that is asked for, and only there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pmcl.runtime import caching

PROGRAM = Path(__file__).parent / "programs" / "compile_something.py"
KEPT = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")


def compiled(folder: Path) -> dict:
    env = {k: v for k, v in os.environ.items() if k not in KEPT}
    run = subprocess.run(
        [sys.executable, PROGRAM, folder], capture_output=True, text=True, check=True, env=env
    )
    return json.loads(run.stdout.splitlines()[-1])


def test_what_one_process_compiles_the_next_one_finds(tmp_path):
    folder = tmp_path / "cache"
    first, second = compiled(folder), compiled(folder)
    assert first["hits"] == 0 and second["hits"] >= 1
    assert first["folder"] == str(folder) and not first["said"] and not second["said"]
    # a damaged cache is said, and no error
    for file in folder.glob("*-cache"):
        file.write_bytes(file.read_bytes()[:50])
    third = compiled(folder)
    assert third["hits"] == 0 and any("cache" in text for text in third["said"])
    assert first["trace"] == second["trace"] == third["trace"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    found = compiled(tmp_path / "file" / "cache")
    assert found["folder"] is None
    assert any("cannot be written" in text for text in found["said"])


def test_the_folder_is_of_this_jaxlib_and_processor(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = caching.default_folder()
    assert folder.name.startswith("jaxlib-") and folder == caching.default_folder()
    monkeypatch.setattr(caching.Path, "read_text", lambda _, **k: "flags : other")
    assert caching.default_folder() != folder


@pytest.mark.slow
def test_the_command_keeps_a_cache_once_said_unless_told_not_to(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    env["XDG_CACHE_HOME"] = str(tmp_path)

    def said(*arguments: str, **more: str) -> str:
        command = [sys.executable, "-m", "pmcl.cli", "models", "show", "nowhere", *arguments]
        run = subprocess.run(command, capture_output=True, text=True, env={**env, **more})
        assert run.returncode == 1 and "no published model" in run.stderr
        return run.stderr

    assert "kept in" not in said("--no-cache") and not list(tmp_path.iterdir())
    # one of the user's own stays
    assert "kept in" not in said(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    assert not list(tmp_path.iterdir())
    assert f"kept in {tmp_path}" in said()
    assert "kept in" not in said()
    assert [p.name for p in tmp_path.iterdir()] == ["pmcl"]


def test_the_cache_of_a_process_that_has_one_stays(monkeypatch):
    import jax

    before = jax.config.jax_compilation_cache_dir
    assert before  # the tests' own
    assert caching.for_the_command() is None
    assert jax.config.jax_compilation_cache_dir == before
    assert pytest.importorskip("pmcl").compilation_cache is caching.compilation_cache
