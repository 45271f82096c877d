"""What is made of vLLM's refusals, without vLLM."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BaseModel, Field, ValidationError, model_validator

from worker_vllm.settings import Effective
from worker_vllm.vllm_arguments import _obstacle, explain

CHOSEN = {
    "model": Effective("org/model", "environment", "MODEL_NAME"),
    "quantization": Effective("awq", "environment", "QUANTIZATION"),
    "max_num_seqs": Effective(3, "extra_args", "VLLM_EXTRA_ARGS --max-num-seqs"),
    "hf_overrides": Effective({"num_attention_heads": "x"}, "environment", "HF_OVERRIDES"),
    "enforce_eager": Effective(True, "profile"),
}


class Limits(BaseModel):
    max_num_seqs: Annotated[int, Field(ge=1)] = 1
    token: str = ""

    @model_validator(mode="after")
    def _look(self) -> Limits:
        if self.token:
            raise ValueError("no token is wanted here")
        return self


def refusal(**values: object) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Limits(**values)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    ("message", "variables"),
    [
        ("Cannot find the config file for awq", "(set by QUANTIZATION)"),
        ("max_num_seqs is too small", "(set by VLLM_EXTRA_ARGS --max-num-seqs)"),
        ("--max-num-seqs is too small", "(set by VLLM_EXTRA_ARGS --max-num-seqs)"),
        ("Field 'num_attention_heads' expected int", "(set by HF_OVERRIDES)"),
        ("org/model is not supported", "(set by MODEL_NAME)"),
        (
            "this model cannot do that",
            "(set here: HF_OVERRIDES, MODEL_NAME, QUANTIZATION, VLLM_EXTRA_ARGS --max-num-seqs)",
        ),
        (
            "awqish things",
            "(set here: HF_OVERRIDES, MODEL_NAME, QUANTIZATION, VLLM_EXTRA_ARGS --max-num-seqs)",
        ),
    ],
)
def test_a_refusal_names_the_variables_that_it_is_about(message: str, variables: str) -> None:
    assert explain(ValueError(message), CHOSEN) == f"{message} {variables}"


def test_a_refusal_is_one_line() -> None:
    assert "\n" not in explain(ValueError("one\n  two\n"), {})
    assert explain(ValueError(), {}) == "ValueError"


def test_a_validation_error_gives_each_fault_and_none_of_the_input() -> None:
    message = explain(refusal(max_num_seqs=0, token="swordfish"), {})
    assert message == "max_num_seqs: Input should be greater than or equal to 1"
    message = explain(refusal(token="swordfish"), {})
    assert message == "no token is wanted here"


def test_a_missing_file_behind_a_refusal_is_no_fault_of_the_settings() -> None:
    missing = FileNotFoundError("config.json")
    try:
        raise ValueError("Invalid repository ID") from missing
    except ValueError as error:
        assert _obstacle(error) is missing
    assert _obstacle(ValueError("x")) is None


def test_a_missing_file_is_found_inside_a_validation_error() -> None:
    missing = OSError("no network")

    class Model(BaseModel):
        @model_validator(mode="after")
        def _look(self) -> Model:
            raise ValueError("Invalid repository ID") from missing

    with pytest.raises(ValidationError) as caught:
        Model()
    assert _obstacle(caught.value) is missing
