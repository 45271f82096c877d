"""Which table of arguments counts: the record, or what the installed vLLM says itself."""

from __future__ import annotations

import pytest

from tests.configurations import table
from worker_vllm import vllm_table
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.errors import EngineStartError

READ = ArgumentTable(version="9.9", arguments=())


@pytest.fixture
def nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_table, "read_table", lambda: READ)


def install(monkeypatch: pytest.MonkeyPatch, version: str, fingerprint: str) -> None:
    monkeypatch.setattr(vllm_table.installed, "vllm_version", lambda: version)
    monkeypatch.setattr(vllm_table, "fingerprint", lambda: fingerprint)
    monkeypatch.setattr(vllm_table.util, "find_spec", lambda name: name)


@pytest.mark.usefixtures("nothing_is_imported")
@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cu130"])
def test_the_record_counts_while_vllms_sources_are_the_same(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    install(monkeypatch, version, table("0.32.0").fingerprint)
    assert vllm_table.installed_table() == table("0.32.0")


@pytest.mark.usefixtures("nothing_is_imported")
@pytest.mark.parametrize(("version", "fingerprint"), [("0.32.0", "other sources"), ("0.99.0", "")])
def test_another_vllm_is_read_itself(monkeypatch: pytest.MonkeyPatch, version: str, fingerprint: str) -> None:
    install(monkeypatch, version, fingerprint)
    assert vllm_table.installed_table() is READ


@pytest.mark.usefixtures("nothing_is_imported")
def test_no_vllm_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "not installed", "")
    monkeypatch.setattr(vllm_table.util, "find_spec", lambda name: None)
    with pytest.raises(EngineStartError, match="vLLM is not installed"):
        vllm_table.installed_table()
