"""Every name of vLLM's that the worker uses exists in the installed version, in the form it is used in."""

from __future__ import annotations

import inspect

import pytest

from worker_vllm import installed, vllm_compat
from worker_vllm.vllm_homes import HOMES, OPTIONAL_HOMES

PARAMETERS = {
    "build_app": ("args", "supported_tasks", "model_config"),
    "init_app_state": ("engine_client", "state", "args", "supported_tasks"),
}
METHODS = {
    "AsyncLLM": {
        "from_vllm_config": (
            "vllm_config",
            "usage_context",
            "stat_loggers",
            "enable_log_requests",
            "aggregate_engine_logging",
            "disable_log_stats",
        ),
        "generate": ("prompt", "sampling_params", "request_id", "lora_request"),
        "encode": ("prompt", "pooling_params", "request_id"),
        "abort": ("request_id",),
        "shutdown": (),
        "reset_mm_cache": (),
        "get_supported_tasks": (),
    },
    "AsyncMPClient": {"get_output_async": ()},
    "AsyncEngineArgs": {"from_cli_args": ("args",), "create_engine_config": ("usage_context",)},
    "StatLoggerBase": {"record": ("scheduler_stats", "iteration_stats"), "log_engine_initialized": ()},
    "ToolParserManager": {"import_tool_parser": ()},
    "ReasoningParserManager": {"import_reasoning_parser": ()},
}
FIELDS = {
    "CompletionRequest": ("prompt", "max_tokens", "truncate_prompt_tokens"),
    "ChatCompletionRequest": ("messages", "tools", "tool_choice", "truncate_prompt_tokens"),
}


@pytest.mark.parametrize("name", sorted(HOMES))
def test_a_needed_name_is_found(name: str) -> None:
    assert vllm_compat.load(name) is not None


@pytest.mark.parametrize("name", sorted(OPTIONAL_HOMES))
def test_an_optional_name_is_found_or_none(name: str) -> None:
    vllm_compat.load(name)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_function_takes_what_it_is_given(name: str) -> None:
    assert set(PARAMETERS[name]) <= set(inspect.signature(vllm_compat.load(name)).parameters)


@pytest.mark.parametrize(("name", "method"), [(name, method) for name in METHODS for method in METHODS[name]])
def test_a_method_takes_what_it_is_given(name: str, method: str) -> None:
    found = inspect.signature(getattr(vllm_compat.load(name), method)).parameters
    assert set(METHODS[name][method]) <= set(found)


@pytest.mark.parametrize("name", FIELDS)
def test_a_request_has_the_fields_that_are_set(name: str) -> None:
    assert set(FIELDS[name]) <= set(vllm_compat.load(name).model_fields)


def test_outputs_come_in_the_kinds_that_are_asked_for() -> None:
    assert {"DELTA", "FINAL_ONLY", "CUMULATIVE"} <= set(vllm_compat.load("RequestOutputKind").__members__)


def test_a_name_that_no_version_has_is_an_error() -> None:
    with pytest.raises(ImportError, match=r"0\.26 to 0\.33"):
        vllm_compat.load("nothing")


def test_the_version_is_in_the_supported_range() -> None:
    version = installed.vllm_version()
    assert version is not None
    assert (0, 26) <= tuple(map(int, version.split("+")[0].split(".")[:2])) <= (0, 33)


def test_the_rule_for_intervals_is_the_one_that_a_streams_demand_stands_on() -> None:
    """`engine/demand.py` writes these fields; `State` in its unit test follows this rule."""
    import importlib

    state = importlib.import_module("vllm.v1.engine.output_processor").RequestState
    rule = " ".join(inspect.getsource(state.make_request_output).split())
    for part in (
        "if self.stream_interval > 1:",
        "finished or self.sent_tokens_offset == 0 or self.detokenizer.num_output_tokens() - "
        "self.sent_tokens_offset >= self.stream_interval",
        "self.detokenizer.output_token_ids[ self.sent_tokens_offset : ]",
        "self.sent_tokens_offset = self.detokenizer.num_output_tokens()",
    ):
        assert part in rule
