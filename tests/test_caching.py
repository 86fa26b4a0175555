"""Compiled functions outlive the process where that is asked for, and only there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pmcl import caching
from pmcl.cli import main

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
    monkeypatch.setattr(caching.Path, "read_text", lambda _: "flags : other")
    assert caching.default_folder() != folder


def test_the_command_keeps_a_cache_once_said_unless_told_not_to(monkeypatch, tmp_path, capsys):
    for name in (*os.environ,):
        if name.startswith("JAX_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(caching.platformdirs, "user_cache_path", lambda _: tmp_path / "pmcl")
    monkeypatch.delitem(sys.modules, "jax")  # as in the command's own process
    before = {*os.environ}

    def settings() -> set[str]:
        return {n for n in os.environ if n.startswith("JAX_")} - before

    try:
        assert main(["models", "show", "nowhere", "--no-cache"]) == 1
        assert not settings() and not (tmp_path / "pmcl").exists()
        assert "kept in" not in capsys.readouterr().err
        assert main(["models", "show", "nowhere"]) == 1
        assert "kept in" in capsys.readouterr().err
        assert os.environ["JAX_COMPILATION_CACHE_DIR"].startswith(str(tmp_path))
        assert main(["models", "show", "nowhere"]) == 1
        assert "kept in" not in capsys.readouterr().err
        # a cache of the user's own stays
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
        assert main(["models", "show", "nowhere"]) == 1
        assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"
    finally:
        for name in settings():
            del os.environ[name]


def test_the_cache_of_a_process_that_has_one_stays(monkeypatch):
    import jax

    before = jax.config.jax_compilation_cache_dir
    assert before  # the tests' own
    assert caching.for_the_command() is None
    assert jax.config.jax_compilation_cache_dir == before
    assert pytest.importorskip("pmcl").compilation_cache is caching.compilation_cache
