"""What is said of another vLLM's arguments."""

from __future__ import annotations

import pytest

from builder import compare_fields
from builder.record_fields import PACKAGE, TESTS
from worker_vllm.configuration.arguments import Argument, ArgumentTable

OLD, NEW = PACKAGE / "0.32.0.json", TESTS / "vllm-fields-0.33.0.json"


def table(*arguments: Argument, version: str = "1.0", **parts: object) -> ArgumentTable:
    return ArgumentTable.model_validate({"version": version, "arguments": arguments, **parts})


def report(old: ArgumentTable, new: ArgumentTable) -> str:
    return "\n".join(filter(None, compare_fields.differences(old, new)))


def test_a_table_is_the_same_as_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_fields.main([str(OLD), str(OLD)]) == 0
    assert "It takes the same." in capsys.readouterr().out


def test_a_newer_vllm_is_told_by_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_fields.main([str(OLD), str(NEW)]) == compare_fields.DIFFERENT
    text = capsys.readouterr().out
    assert text.startswith("vLLM 0.33.0 against 0.32.0")
    old, new = (ArgumentTable.model_validate_json(path.read_bytes()).by_name.keys() for path in (OLD, NEW))
    assert new - old
    for name in new - old:
        assert f"- `{name}` (" in text
    for name in old - new:
        assert f"- `{name}`\n" in text


def test_a_change_is_told_with_what_was_and_what_is() -> None:
    old = table(Argument(name="a", home="engine", kind="int", default=1, choices=("x", "y")))
    new = table(
        Argument(name="a", home="engine", kind="int", default=2, choices=("y", "z"), help="other words")
    )
    assert report(old, new) == (
        "### Arguments that are read in another way\n\n- `a`: default `1` → `2`, choices +`z` -`x`\n"
    )


def test_other_words_in_a_help_text_are_no_difference() -> None:
    old, new = (table(Argument(name="a", home="engine", kind="int", help=words)) for words in ("one", "two"))
    assert report(old, new) == ""


def test_registries_and_variables_count_too() -> None:
    old = table(registries={"quantization": ("awq",)}, environment=("VLLM_A",))
    new = table(registries={"quantization": ("fp8",)}, environment=("VLLM_B",))
    assert report(old, new) == (
        "### Values of `quantization`\n\n- new: `fp8`\n- gone: `awq`\n\n"
        "### Variables that vLLM reads itself\n\n- new: `VLLM_B`\n- gone: `VLLM_A`\n"
    )


def test_a_long_default_is_cut() -> None:
    new = table(Argument(name="a", home="engine", kind="text", default="x" * 500))
    (line,) = (line for line in report(table(), new).splitlines() if line.startswith("- "))
    assert len(line) < 130
