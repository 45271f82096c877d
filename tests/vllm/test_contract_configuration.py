"""The configuration on the installed vLLM, whichever that is: its own parser, its own config classes, and for
the forms an engine. `make test-compat` runs this on 0.28 and 0.30 too."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.configurations import FORMS, form, table
from worker_vllm import vllm_arguments, vllm_compat, vllm_table
from worker_vllm.configuration import Configuration, Machine, resolve
from worker_vllm.configuration.arguments import Argument, ArgumentTable
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.env_names import ZERO_MEANS_UNSET
from worker_vllm.errors import ConfigurationError
from worker_vllm.installed import vllm_version

CPU = Machine("cpu", free_memory=4 * 1024**3)
INSTALLED = vllm_version()

# vLLM takes 0 there while it puts its configuration together, and fails or ignores it later
ZERO_FAILS_LATER = {
    "kv_cache_memory_bytes",
    "max_cpu_loras",
    "num_gpu_blocks_override",
    "renderer_num_workers",
}

# read by vLLM's parser into something else than what is written
SAMPLES: dict[str, Any] = {
    "device_ids": "0,1",
    "lora_modules": [{"name": "a", "path": "b"}],
    "ssl_cert_reqs": 0,
    "max_model_len": 8192,
    "kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"},
    "profiler_config": {"profiler": "torch", "torch_profiler_dir": "/tmp"},
}


@pytest.fixture(scope="module")
def installed(vllm_environment: None) -> ArgumentTable:
    return vllm_table.read_table()


# one form asks for compilation, which takes a minute on a CPU
EAGER = {"VLLM_ARG_ENFORCE_EAGER": "true"}


def configure(environ: dict[str, str]) -> Configuration:
    tiny = {"MODEL_NAME": str(models.tiny()), "HF_HUB_OFFLINE": "1"}
    nowhere = Path("/nonexistent")
    return resolve({**tiny, **environ}, table=vllm_table.read_table(), this_machine=CPU, root=nowhere)


def parse(environ: dict[str, str]) -> Namespace:
    return vllm_compat.namespace(configure(environ))


def problems(environ: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        vllm_arguments.check_engine_config(parse(environ))
    return caught.value.problems


def sample(argument: Argument) -> Any:
    if argument.name in SAMPLES:
        return SAMPLES[argument.name]
    if argument.choices:
        value: Any = argument.choices[-1]
    elif argument.kind in ("json", "json_or_text"):
        value = {}
    else:
        value = {"bool": True, "int": 3, "float": 0.5, "text": "word"}[argument.kind]
    return [value] if argument.many else value


def test_the_recorded_table_is_what_the_installed_vllm_says(installed: ArgumentTable) -> None:
    """`python -m builder.record_fields` records it again. Without the help texts: vLLM reads those only where
    it is imported with --help, and another test may have imported it."""
    unlike: Any = {"fingerprint": True, "arguments": {"__all__": {"help"}}}
    assert installed.model_dump(exclude=unlike) == table(INSTALLED).model_dump(exclude=unlike)


@pytest.mark.skipif(INSTALLED != "0.32.0", reason="the package has the record of the default version alone")
def test_the_packages_record_counts_for_the_installed_vllm(installed: ArgumentTable) -> None:
    assert vllm_table.installed_table().fingerprint == vllm_table.fingerprint() == installed.fingerprint


def test_every_argument_reaches_vllm_typed_by_its_own_parser(installed: ArgumentTable) -> None:
    parser = vllm_table.make_parser()
    actions = {action.dest: action for action in parser._actions}
    for argument in installed.arguments:
        typed = vllm_arguments._typed(parser, actions[argument.name], sample(argument))
        assert typed is not None, argument.name
        if argument.kind in ("bool", "int", "float") and not argument.many:
            assert typed == sample(argument), argument.name


def test_values_are_typed_in_the_namespace() -> None:
    args = parse(
        {
            "MAX_MODEL_LEN": "1k",
            "SEED": "7",
            "LIMIT_MM_PER_PROMPT": "image=1,video=0",
            "COMPILATION_CONFIG": '{"mode": 0}',
            "LORA_MODULES": '[{"name": "a", "path": "b"}]',
            "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "x,y",
            "DEFAULT_CHAT_TEMPLATE_KWARGS": '{"enable_thinking": false}',
            "VLLM_EXTRA_ARGS": "--no-enable-prefix-caching",
        }
    )
    assert args.max_model_len == 1000
    assert args.seed == 7
    assert args.limit_mm_per_prompt == {"image": 1, "video": 0}
    assert args.compilation_config.mode == 0
    assert [(adapter.name, adapter.path) for adapter in args.lora_modules] == [("a", "b")]
    assert args.enable_lora is True
    assert args.served_model_name == ["x", "y"]
    assert args.default_chat_template_kwargs == {"enable_thinking": False}
    assert args.enable_prefix_caching is False
    assert args.enforce_eager is True
    assert args.model == args.model_tag == str(models.tiny())


def test_secrets_are_not_in_the_namespace() -> None:
    args = parse({"HF_TOKEN": "hf_swordfish", "VLLM_API_KEY": "swordfish", "VLLM_ARG_API_KEY": "swordfish"})
    assert "swordfish" not in repr(args)
    assert args.api_key is None


def test_parser_layer_names_the_variable_of_a_bad_inner_value() -> None:
    (problem,) = problems({"COMPILATION_CONFIG": '{"mode": "fast"}'})
    assert problem.startswith('COMPILATION_CONFIG=\'{"mode": "fast"}\': ')
    assert "errors.pydantic.dev" not in problem


def test_parser_layer_finds_vllms_own_variables_that_it_cannot_read() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "VLLM_ENGINE_READY_TIMEOUT_S", "soon")
        (problem,) = problems({"VLLM_ENGINE_READY_TIMEOUT_S": "soon"})
    assert problem.startswith("VLLM_ENGINE_READY_TIMEOUT_S: ")


@pytest.mark.parametrize(
    ("environ", "variable", "words"),
    [
        ({"MAX_MODEL_LEN": "100000"}, "MAX_MODEL_LEN", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
        ({"QUANTIZATION": "awq"}, "QUANTIZATION", "awq"),
        ({"TENSOR_PARALLEL_SIZE": "3"}, "TENSOR_PARALLEL_SIZE", "divisible by tensor parallel size"),
        ({"GPU_MEMORY_UTILIZATION": "1.5"}, "GPU_MEMORY_UTILIZATION", "less than or equal to 1"),
        ({"SPECULATIVE_CONFIG": '{"method": "ngram"}'}, "SPECULATIVE_CONFIG", "num_speculative_tokens"),
        ({"HF_OVERRIDES": '{"num_attention_heads": "x"}'}, "HF_OVERRIDES", "num_attention_heads"),
    ],
)
def test_config_layer_names_the_variable_behind_vllms_refusal(
    environ: dict[str, str], variable: str, words: str
) -> None:
    (problem,) = problems(environ)
    assert words in problem
    assert variable in problem
    assert "\n" not in problem


def test_config_layer_leaves_missing_files_to_the_engines_start() -> None:
    """A hub that is down is no fault of the settings, and a restart can mend it."""
    with pytest.raises(OSError, match="cached"):
        vllm_arguments.check_engine_config(parse({"MODEL_NAME": "org/nowhere"}))


def test_rope_scaling_keeps_the_rest_of_the_models_parameters() -> None:
    scaling = '{"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}'
    _, config = vllm_arguments.check_engine_config(parse({"ROPE_SCALING": scaling}))
    parameters = config.model_config.hf_config.rope_parameters
    assert parameters["rope_theta"] == 10_000.0
    assert (parameters["rope_type"], parameters["factor"]) == ("yarn", 2.0)


@pytest.mark.parametrize("name", sorted(ZERO_MEANS_UNSET - ZERO_FAILS_LATER))
def test_vllm_refuses_the_zeros_that_mean_unset(name: str) -> None:
    args = parse({"ENABLE_LORA": "true"})
    if not hasattr(args, name):
        pytest.skip(f"vLLM {INSTALLED} has no {name}")
    setattr(args, name, 0)
    with pytest.raises(ConfigurationError):
        vllm_arguments.check_engine_config(args)


@pytest.mark.parametrize("name", FORMS)
def test_config_layer_takes_every_form_that_nobody_touched(name: str) -> None:
    _, config = vllm_arguments.check_engine_config(parse(form(name)))
    assert config.cache_config.enable_prefix_caching is not False
    assert config.parallel_config.tensor_parallel_size == 1


@pytest.mark.parametrize("name", ["hub-old", "hub-new"])
def test_an_engine_starts_with_an_untouched_form_and_gets_only_the_secrets_it_needs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "RUNPOD_AI_API_KEY": "swordfish-1",
        "AWS_SECRET_ACCESS_KEY": "swordfish-2",
        "HF_TOKEN": "hf_fish",
    }
    for variable, text in secrets.items():
        monkeypatch.setitem(os.environ, variable, text)
    resolved = configure({**form(name), **secrets, **EAGER})
    with resolved.secrets_withheld(os.environ):
        host = EngineHost.from_args(vllm_compat.namespace(resolved))
    try:
        children = descendants(os.getpid())
        assert children
        for child in children:
            words = [Path(f"/proc/{child}/{name}").read_bytes() for name in ("cmdline", "environ")]
            assert b"swordfish" not in b"".join(words)
            assert b"hf_fish" not in words[0]
    finally:
        host.stop()
    assert os.environ["RUNPOD_AI_API_KEY"] == "swordfish-1"


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found: list[int] = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *descendants(child)]
    return found
