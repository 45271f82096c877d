"""Reading .runpod/tests.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker_vllm.emulator.hub_test import HubFileError, HubTest, read_hub_tests


def write(path: Path, content: Any) -> Path:
    file = path / "tests.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_tests_and_variables_are_read(tmp_path: Path) -> None:
    content = {
        "tests": [{"name": "a", "input": {"prompt": "x"}}, {"name": "b", "input": {}, "timeout": 5}],
        "config": {"gpuCount": 1, "env": [{"key": "MODEL_NAME", "value": "m"}]},
    }
    found = read_hub_tests(write(tmp_path, content))
    assert found.tests == (HubTest("a", {"prompt": "x"}, 30_000), HubTest("b", {}, 5))
    assert found.environment == {"MODEL_NAME": "m"}


@pytest.mark.parametrize(
    "content",
    [
        "nope",
        [],
        {},
        {"tests": [{"name": "a"}]},
        {"tests": [{"input": {}}]},
        {"tests": [], "config": {"env": [1]}},
    ],
)
def test_what_is_no_tests_json_is_refused_by_name(tmp_path: Path, content: Any) -> None:
    with pytest.raises(HubFileError, match=r"tests\.json"):
        read_hub_tests(write(tmp_path, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HubFileError, match="cannot read"):
        read_hub_tests(tmp_path / "none.json")
