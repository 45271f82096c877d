"""Any environment either resolves or fails with a named variable; nothing else ever comes out."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.configurations import CPU, GPU, VERSIONS, configure, table
from worker_vllm import env_names
from worker_vllm.configuration.translations import SPECULATIVE
from worker_vllm.configuration.unknown import known_names
from worker_vllm.errors import ConfigurationError

KNOWN = sorted(known_names(table()))
NAMES = (
    st.sampled_from(KNOWN)
    | st.sampled_from(sorted(env_names.TRANSLATED | SPECULATIVE.keys() | {"VLLM_EXTRA_ARGS", "LORA_MODULES"}))
    | st.sampled_from(KNOWN).map(lambda name: f"VLLM_ARG_{name}")
    | st.sampled_from(KNOWN).map(lambda name: f"{name}__key")
    | st.text(st.characters(categories=["Lu", "Nd"], include_characters="_"), min_size=1, max_size=20)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
).map(repr)
FLAGS = st.lists(
    st.sampled_from(sorted(table().by_flag))
    | st.text(max_size=8)
    | st.sampled_from(["--x.y", "-O3", "'", "="]),
    max_size=5,
).map(" ".join)
TEXTS = (
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
    | JSON
    | FLAGS
    | st.sampled_from(
        [
            "true",
            "0",
            "1",
            "-1",
            "auto",
            "8k",
            "a=1,b=2",
            "[1,2]",
            "{'a': 1}",
            "None",
            "a=b c=d",
            "256",
            "ngram",
            "embed",
        ]
    )
)


@given(st.dictionaries(NAMES, TEXTS, max_size=6), st.sampled_from(VERSIONS), st.sampled_from([CPU, GPU]))
@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
def test_any_environment_resolves_or_fails_with_a_named_variable(
    environ: dict[str, str], version: str, machine
) -> None:
    environ.pop("VLLM_CONFIG_FILE", None)
    try:
        resolved = configure(environ, version=version, machine=machine)
    except ConfigurationError as error:
        assert error.problems
        for problem in error.problems:
            assert any(name in problem for name in ({*environ, "MODEL_NAME"}) if name), problem
            assert "\n" not in problem
    else:
        assert resolved.served_model_names
        assert all("\n" not in warning for warning in resolved.warnings)


@given(st.dictionaries(NAMES, TEXTS, max_size=6))
def test_the_environment_is_never_changed(environ: dict[str, str]) -> None:
    before = dict(environ)
    with contextlib.suppress(ConfigurationError):
        configure(environ)
    assert environ == before


@pytest.mark.parametrize("suffix", ["yaml"])
@given(content=st.binary(max_size=60) | TEXTS.map(lambda text: f"seed: {text}".encode()))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_any_file_is_read_or_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"vllm_config.{suffix}"
    path.write_bytes(content)
    try:
        configure(root=tmp_path)
    except ConfigurationError as error:
        assert error.problems
