from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from worker_vllm import settings
from worker_vllm.settings import Effective, WorkerSettings

VARIABLES = [name for setting in WorkerSettings.model_fields for name in settings.names(setting)]


def read_one(setting: str, **environ: str) -> object:
    result = settings.read(environ)
    assert not result.problems
    return getattr(result.settings, setting)


def test_an_empty_environment_gives_the_defaults() -> None:
    result = settings.read({})
    assert result.settings == WorkerSettings()
    assert {effective.source for effective in result.effective.values()} == {"default"}


@pytest.mark.parametrize(
    ("environ", "setting", "value"),
    [
        ({"MAX_CONCURRENCY": "30"}, "max_concurrency", 30),
        ({"DEFAULT_MAX_TOKENS": "256"}, "default_max_tokens", 256),
        ({"DEFAULT_BATCH_SIZE": "8"}, "default_batch_size", 8),
        ({"MIN_BATCH_SIZE": "2"}, "min_batch_size", 2),
        ({"DEFAULT_MIN_BATCH_SIZE": "2"}, "min_batch_size", 2),
        ({"MIN_BATCH_SIZE": "4", "DEFAULT_MIN_BATCH_SIZE": "2"}, "min_batch_size", 4),
        ({"BATCH_SIZE_GROWTH_FACTOR": "1.5"}, "batch_size_growth_factor", 1.5),
        ({"DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "2"}, "batch_size_growth_factor", 2.0),
        ({"REQUEST_TIMEOUT": "60"}, "request_timeout_s", 60.0),
        ({"REQUEST_TIMEOUT_S": "30", "REQUEST_TIMEOUT": "60"}, "request_timeout_s", 30.0),
        ({"LOG_FORMAT": "JSON"}, "log_format", "json"),
        ({"LOG_LEVEL": "Debug"}, "log_level", "debug"),
        ({"OPENAI_ERRORS": "body"}, "openai_errors", "body"),
        ({"STARTUP_FAILURE": "answer"}, "startup_failure", "answer"),
        ({"WORKER_ROUTES": " /metrics , all"}, "worker_routes", "/metrics,all"),
    ],
)
def test_each_variable_sets_its_setting(environ: dict[str, str], setting: str, value: object) -> None:
    assert read_one(setting, **environ) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("2", True), ("0", False), ("False", False), ("-1", True)],
)
def test_raw_output_takes_words_and_numbers(text: str, value: bool) -> None:
    """The earlier worker read it with int()."""
    assert read_one("raw_openai_output", RAW_OPENAI_OUTPUT=text) is value


@pytest.mark.parametrize("text", ["", "None", "null", "  "])
@pytest.mark.parametrize("setting", sorted(WorkerSettings.model_fields))
def test_unset_words_leave_every_setting_alone(setting: str, text: str) -> None:
    result = settings.read(dict.fromkeys(settings.names(setting), text))
    assert not result.problems
    assert result.settings == WorkerSettings()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("DEFAULT_BATCH_SIZE", "50"),
        ("MIN_BATCH_SIZE", "1"),
        ("DEFAULT_MIN_BATCH_SIZE", "1"),
        ("BATCH_SIZE_GROWTH_FACTOR", "3"),
        ("DEFAULT_BATCH_SIZE_GROWTH_FACTOR", "3.0"),
    ],
)
def test_batch_sizes_that_the_forms_always_sent_are_not_chosen(variable: str, text: str) -> None:
    result = settings.read({variable: text})
    assert result.settings == WorkerSettings()
    assert all(effective.source == "default" for effective in result.effective.values())


def test_all_bad_values_are_told_at_once_with_variable_value_and_expectation() -> None:
    result = settings.read(
        {
            "MAX_CONCURRENCY": "0",
            "DEFAULT_MIN_BATCH_SIZE": "many",
            "LOG_FORMAT": "xml",
            "RAW_OPENAI_OUTPUT": "raw",
            "WORKER_ROUTES": "metrics",
        }
    )
    assert sorted(result.problems) == [
        "DEFAULT_MIN_BATCH_SIZE='many': expected a whole number",
        "LOG_FORMAT='xml': expected text or json",
        "MAX_CONCURRENCY='0': expected a number greater than or equal to 1",
        "RAW_OPENAI_OUTPUT='raw': expected true or false",
        "WORKER_ROUTES='metrics': expected inference, all, or routes such as /metrics with commas "
        "between them",
    ]


def test_the_source_of_a_value_is_the_variable_that_set_it() -> None:
    effective = settings.read({"DEFAULT_MIN_BATCH_SIZE": "2"}).effective["min_batch_size"]
    assert effective == Effective(2, "environment", "DEFAULT_MIN_BATCH_SIZE")


def test_settings_are_frozen_and_take_no_unknown_names() -> None:
    with pytest.raises(ValidationError):
        WorkerSettings().log_level = "debug"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        WorkerSettings(colour="green")  # type: ignore[call-arg]


def test_every_setting_is_documented() -> None:
    assert all(field.description for field in WorkerSettings.model_fields.values())


def test_a_secret_is_never_shown() -> None:
    effective = Effective("swordfish", "environment", "HF_TOKEN", secret=True)
    assert "swordfish" not in repr(effective)
    assert effective.shown() == "***"


@given(st.dictionaries(st.sampled_from(VARIABLES), st.text()))
def test_any_environment_is_read_or_refused_with_a_named_variable(environ: dict[str, str]) -> None:
    result = settings.read(environ)
    assert all(any(problem.startswith(f"{name}=") for name in environ) for problem in result.problems)
