"""Secrets reach no output, and no process that does not need them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.configurations import configure, table
from worker_vllm.configuration import Configuration
from worker_vllm.configuration.secrets import Redactor, hidden_from_children, is_secret, withheld
from worker_vllm.errors import ConfigurationError

SECRET = "swordfish-0123456789"
NAMES = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "VLLM_API_KEY",
    "RUNPOD_AI_API_KEY",
    "RUNPOD_API_KEY",
    "RUNPOD_ENDPOINT_SECRET",
    "RUNPOD_SECRET_hub",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "BUCKET_SECRET_ACCESS_KEY",
    "BUCKET_ACCESS_KEY_ID",
    "BUCKET_ENDPOINT_URL",
    "OPENAI_API_KEY",
    "API_KEY",
)


def shown(resolved: Configuration) -> str:
    """Everything that anybody prints of a configuration."""
    values = {
        name: resolved.redactor.data(effective.shown())
        for name, effective in {**resolved.engine, **resolved.frontend}.items()
    }
    return json.dumps(values) + repr(resolved) + " ".join(resolved.warnings)


def everything_said_about(environ: Mapping[str, str]) -> str:
    try:
        return shown(configure(environ))
    except ConfigurationError as error:
        return str(error)


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_variable_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["TOKENIZER", "MAX_NUM_BATCHED_TOKENS", "MODEL_NAME", "RUNPOD_POD_ID", "SEED"]
)
def test_other_variables_are_not_secret(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_is_in_no_output(name: str) -> None:
    assert SECRET not in everything_said_about({name: SECRET})


@pytest.mark.parametrize(
    "environ",
    [
        {"VLLM_EXTRA_ARGS": f"--hf-token {SECRET}"},
        {"VLLM_EXTRA_ARGS": f"--hf-token={SECRET}"},
        {"VLLM_EXTRA_ARGS": f"--hf-token '{SECRET}"},
        {"VLLM_EXTRA_ARGS": f"--api-key {SECRET} --seed x"},
        {"VLLM_EXTRA_ARGS": "hf_abcdefghijklmnopqrst --seed x"},
        {"VLLM_ARG_API_KEY": SECRET},
        {"VLLM_ARG_HF_TOKEN": SECRET, "MAX_NUM_SEQS": SECRET},
        {"HF_TOKEN": SECRET, "MAX_MODEL_LEN": SECRET},
        {"HF_TOKEN": SECRET, "HF_OVERRIDES": json.dumps({"token": SECRET})},
        {"AWS_SECRET_ACCESS_KEY": SECRET, "MODEL_NAME": f"s3://key:{SECRET}@bucket/model"},
        {"HF_TOKEN": SECRET, "DTYPE": SECRET, "LOG_FORMAT": SECRET, "TASK": SECRET},
    ],
)
def test_a_secret_in_another_place_is_in_no_output(environ: dict[str, str]) -> None:
    said = everything_said_about(environ)
    assert SECRET not in said
    assert "hf_abcdefghijklmnopqrst" not in said


def test_a_secret_that_the_file_takes_from_the_environment_is_in_no_output(tmp_path: Path) -> None:
    (tmp_path / "vllm_config.yaml").write_text("hf-token: ${HF_TOKEN}\nmax-num-seqs: ${HF_TOKEN}\n")
    with pytest.raises(ConfigurationError) as caught:
        configure(root=tmp_path, HF_TOKEN=SECRET)
    assert SECRET not in str(caught.value)


TEXTS = st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=30)
VARIABLES = st.sampled_from([*NAMES, *(argument.variable for argument in table().arguments)])


@given(
    TEXTS,
    st.lists(VARIABLES, max_size=5),
    st.sampled_from(["HF_TOKEN", "RUNPOD_AI_API_KEY", "AWS_SECRET_ACCESS_KEY"]),
)
@settings(max_examples=200)
def test_no_secret_of_a_random_environment_is_in_a_message(
    secret: str, variables: list[str], name: str
) -> None:
    environ = {**dict.fromkeys(variables, secret), name: secret}
    try:
        resolved = configure(environ)
    except ConfigurationError as error:
        said = str(error)
    else:
        values = [resolved.redactor.data(e.shown()) for e in resolved.chosen().values()]
        said = json.dumps(values, ensure_ascii=False) + " ".join(resolved.warnings)
    assert secret not in said
    assert json.dumps(secret)[1:-1] not in said


def test_the_token_reaches_the_hub_library_by_its_own_variable() -> None:
    assert configure(HF_TOKEN=SECRET).environment == {}
    assert configure(HUGGING_FACE_HUB_TOKEN=SECRET).environment == {"HF_TOKEN": SECRET}
    assert configure(VLLM_EXTRA_ARGS=f"--hf-token {SECRET}").environment["HF_TOKEN"] == SECRET


def test_the_key_of_a_server_is_taken_away_from_vllm() -> None:
    assert configure(VLLM_API_KEY=SECRET).environment == {"VLLM_API_KEY": None}


def test_engine_processes_do_not_get_what_they_do_not_need() -> None:
    environ = dict.fromkeys((*NAMES, "PATH", "RUNPOD_POD_ID"), SECRET)
    kept = set(environ) - set(configure(environ).hidden_from_children)
    assert kept == {
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "OPENAI_API_KEY",
        "API_KEY",
        "PATH",
        "RUNPOD_POD_ID",
    }


@pytest.mark.parametrize(
    "environ",
    [{"MODEL_NAME": "s3://bucket/model"}, {"LOAD_FORMAT": "runai_streamer"}, {"LOAD_FORMAT": "tensorizer"}],
)
def test_an_engine_that_reads_an_object_store_gets_its_keys(environ: dict[str, str]) -> None:
    hidden = configure(
        {"AWS_SECRET_ACCESS_KEY": SECRET, "BUCKET_ACCESS_KEY_ID": SECRET, **environ}
    ).hidden_from_children
    assert hidden == ("BUCKET_ACCESS_KEY_ID",)


def test_withheld_variables_come_back_even_after_a_failure() -> None:
    environ = {"A": "1", "B": "2"}
    with pytest.raises(RuntimeError), withheld(environ, ("A", "C")):
        assert environ == {"B": "2"}
        raise RuntimeError
    assert environ == {"A": "1", "B": "2"}


def test_hidden_names_are_found_in_any_case() -> None:
    assert hidden_from_children(["runpod_ai_api_key"], reads_storage=False) == ("runpod_ai_api_key",)


def test_a_redactor_strikes_out_the_longest_secret_first_and_leaves_short_words() -> None:
    redactor = Redactor({"HF_TOKEN": "abcdef", "AWS_REGION": "us", "API_KEY": "abcdefgh"})
    assert redactor.text("abcdefgh abcdef us") == "*** *** us"
    assert redactor.data({"abcdef": ["abcdefgh", 1, None]}) == {"***": ["***", 1, None]}


def test_changes_are_applied_to_the_environment_that_is_given() -> None:
    environ = {"VLLM_EXTRA_ARGS": "--seed 1", "HUGGING_FACE_HUB_TOKEN": SECRET, "PATH": "/bin"}
    configure(environ).apply_environment(environ)
    assert environ == {"HUGGING_FACE_HUB_TOKEN": SECRET, "HF_TOKEN": SECRET, "PATH": "/bin"}
