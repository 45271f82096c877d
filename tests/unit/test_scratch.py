"""The folder of vLLM's sockets: theirs while they start, gone with the worker, or at the next start."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker_vllm import scratch


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary folder that the machine has."""
    scratch.remove()  # another test's worker may have had one
    monkeypatch.setattr(scratch, "LONGEST_PATH", 500)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    scratch.remove()


def test_what_is_written_while_the_engine_starts_goes_with_the_worker(usual: Path) -> None:
    environ = {"TMPDIR": str(usual)}
    with scratch.in_use(environ):
        folder = Path(tempfile.gettempdir())
        assert (folder.parent, environ["TMPDIR"]) == (usual, str(folder))
        (folder / "socket").touch()
    assert (tempfile.gettempdir(), environ) == (str(usual), {"TMPDIR": str(usual)})
    assert folder.exists()
    scratch.remove()
    scratch.remove()
    assert list(usual.iterdir()) == []


def test_what_torch_compiles_is_kept(usual: Path) -> None:
    environ: dict[str, str] = {}
    with scratch.in_use(environ):
        assert environ["TORCHINDUCTOR_CACHE_DIR"] == f"{usual}/torchinductor_{os.getuid()}"
    assert environ == {}
    with scratch.in_use(environ := {"TORCHINDUCTOR_CACHE_DIR": "/mine"}):
        assert environ["TORCHINDUCTOR_CACHE_DIR"] == "/mine"
    assert environ == {"TORCHINDUCTOR_CACHE_DIR": "/mine"}


def test_the_folder_of_a_worker_that_was_killed_goes_and_one_in_use_stays(usual: Path) -> None:
    dead, living = usual / f"{scratch.PREFIX}1-a", usual / f"{scratch.PREFIX}2-b"
    for folder in (dead, living):
        folder.mkdir()
        (folder / "socket").touch()
    descriptor = os.open(living, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    with scratch.in_use({}):
        assert (dead.exists(), living.exists()) == (False, True)
    os.close(descriptor)


def fail(*_: object, **__: object) -> None:
    raise OSError("no locks here")


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [(scratch, "LONGEST_PATH", 10), (fcntl, "flock", fail), (tempfile, "mkdtemp", fail)],
    ids=["a path too long for a socket", "no locks", "no folder"],
)
def test_where_it_cannot_be_the_usual_one_is_used(
    usual: Path, monkeypatch: pytest.MonkeyPatch, where: object, name: str, value: object
) -> None:
    monkeypatch.setattr(where, name, value)
    with scratch.in_use({}):
        assert tempfile.gettempdir() == str(usual)
    assert list(usual.iterdir()) == []


def test_a_forked_child_leaves_the_folder_to_its_parent(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scratch.in_use({}):
        folder = Path(tempfile.gettempdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        scratch.remove()
    assert folder.exists()


def test_a_folder_that_another_worker_sweeps_away_at_once_is_made_again(
    usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp
    made: list[str] = []

    def make_and_lose(*args: str, **options: str) -> str:
        folder = make(*args, **options)
        made.append(folder)
        if len(made) == 1:
            Path(folder).rmdir()
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    with scratch.in_use({}):
        assert tempfile.gettempdir() == made[1]
        assert Path(made[1]).is_dir()
