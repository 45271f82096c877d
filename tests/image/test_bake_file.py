"""docker-bake.hcl: what it builds is what the Dockerfile has."""

from __future__ import annotations

import functools
import re
from typing import Any

import hcl2

from tests.image.dockerfile import ROOT, declared, stages


@functools.cache
def blocks(kind: str) -> dict[str, dict[str, Any]]:
    """The blocks of a kind by name. Texts keep their quotes, to be told from names of variables."""
    parsed = hcl2.loads((ROOT / "docker-bake.hcl").read_text())
    return {name.strip('"'): body for block in parsed[kind] for name, body in block.items()}


def test_the_targets_are_the_gpu_image_a_cpu_image_and_one_with_a_model() -> None:
    assert blocks("target").keys() == {"gpu", "cpu", "baked"}
    assert blocks("group")["default"]["targets"] == ['"gpu"']
    for target in blocks("target").values():
        assert target.get("inherits", ['"gpu"']) == ['"gpu"']


def test_what_is_built_is_the_dockerfiles_last_stage() -> None:
    assert blocks("target")["gpu"]["target"].strip('"') == list(stages())[-1]


def test_the_cpu_target_chooses_a_base_that_there_is() -> None:
    assert f"base-{blocks('target')['cpu']['args']['BUILD'].strip(chr(34))}" in stages()


def test_every_argument_is_one_of_the_dockerfile() -> None:
    for target in blocks("target").values():
        assert target["args"].keys() <= declared().keys()


def test_every_variable_that_is_used_is_declared_and_no_other() -> None:
    text = (ROOT / "docker-bake.hcl").read_text()
    body = re.sub(r"#.*", "", text[text.index("group ") :])
    used = set(re.findall(r"\b[A-Z][A-Z_]+\b(?!\s*=)", re.sub(r"id=HF_TOKEN,env=HF_TOKEN", "", body)))
    assert used == blocks("variable").keys()


def test_a_variables_default_is_the_dockerfiles() -> None:
    for name, variable in blocks("variable").items():
        if name in declared() and name != "VLLM_IMAGE":
            assert variable["default"].strip('"') == declared()[name], name


def test_without_a_digest_vllms_image_is_taken_by_its_tag() -> None:
    given = blocks("target")["gpu"]["args"]["VLLM_IMAGE"]
    assert f'"{declared()["VLLM_IMAGE"]}"' in given
    assert blocks("variable")["VLLM_IMAGE"]["default"] == '""'


def test_a_model_is_baked_with_the_token_as_a_build_secret() -> None:
    assert blocks("target")["baked"]["secret"] == ['"id=HF_TOKEN,env=HF_TOKEN"']
    assert not any("TOKEN" in name and not name.startswith("TOKENIZER") for name in blocks("variable"))
