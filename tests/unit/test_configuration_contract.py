"""Every row of the contract's table of variables (worker-contract.md C.3 and D): what each sets today, or
what is said of it. Nothing is ignored in silence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.configurations import VERSIONS, configure, table, value, warnings_about
from worker_vllm import settings
from worker_vllm.configuration import Configuration

YARN = '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}'

DIRECT: list[tuple[str, str, str, Any]] = [
    ("MODEL_NAME", "org/other", "model", "org/other"),
    ("MODEL_REVISION", "v1", "revision", "v1"),
    ("REVISION", "v1", "revision", "v1"),
    ("TOKENIZER", "org/t", "tokenizer", "org/t"),
    ("TOKENIZER_NAME", "org/t", "tokenizer", "org/t"),
    ("TOKENIZER_REVISION", "v2", "tokenizer_revision", "v2"),
    ("CODE_REVISION", "v3", "code_revision", "v3"),
    ("TOKENIZER_MODE", "mistral", "tokenizer_mode", "mistral"),
    ("SKIP_TOKENIZER_INIT", "true", "skip_tokenizer_init", True),
    ("TRUST_REMOTE_CODE", "1", "trust_remote_code", True),
    ("DOWNLOAD_DIR", "/models", "download_dir", "/models"),
    ("CONFIG_FORMAT", "mistral", "config_format", "mistral"),
    ("LOAD_FORMAT", "safetensors", "load_format", "safetensors"),
    ("DTYPE", "half", "dtype", "half"),
    ("DTYPE", "BFloat16", "dtype", "bfloat16"),
    ("QUANTIZATION", "fp8", "quantization", "fp8"),
    ("KV_CACHE_DTYPE", "fp8", "kv_cache_dtype", "fp8"),
    ("KV_CACHE_DTYPE", "fp8_e5m2", "kv_cache_dtype", "fp8_e5m2"),
    ("MAX_MODEL_LEN", "8192", "max_model_len", 8192),
    ("MAX_MODEL_LEN", "auto", "max_model_len", -1),
    ("MAX_MODEL_LEN", "8k", "max_model_len", 8000),
    ("MAX_MODEL_LEN", "8K", "max_model_len", 8192),
    ("MAX_MODEL_LENGTH", "4096", "max_model_len", 4096),
    ("MAX_NUM_BATCHED_TOKENS", "16K", "max_num_batched_tokens", 16384),
    ("MAX_NUM_SEQS", "64", "max_num_seqs", 64),
    ("MAX_LOGPROBS", "40", "max_logprobs", 40),
    ("SEED", "7", "seed", 7),
    ("GPU_MEMORY_UTILIZATION", "0.8", "gpu_memory_utilization", 0.8),
    ("BLOCK_SIZE", "32", "block_size", 32),
    ("TENSOR_PARALLEL_SIZE", "2", "tensor_parallel_size", 2),
    ("PIPELINE_PARALLEL_SIZE", "2", "pipeline_parallel_size", 2),
    ("DATA_PARALLEL_SIZE", "2", "data_parallel_size", 2),
    ("DISTRIBUTED_EXECUTOR_BACKEND", "ray", "distributed_executor_backend", "ray"),
    ("WORKER_USE_RAY", "true", "distributed_executor_backend", "ray"),
    ("RAY_WORKERS_USE_NSIGHT", "true", "ray_workers_use_nsight", True),
    ("DISABLE_CUSTOM_ALL_REDUCE", "true", "disable_custom_all_reduce", True),
    ("DISABLE_SLIDING_WINDOW", "true", "disable_sliding_window", True),
    ("ENABLE_EXPERT_PARALLEL", "true", "enable_expert_parallel", True),
    ("MAX_PARALLEL_LOADING_WORKERS", "2", "max_parallel_loading_workers", 2),
    ("ENABLE_PREFIX_CACHING", "true", "enable_prefix_caching", True),
    ("ENABLE_CHUNKED_PREFILL", "true", "enable_chunked_prefill", True),
    ("NUM_GPU_BLOCKS_OVERRIDE", "100", "num_gpu_blocks_override", 100),
    ("CPU_OFFLOAD_GB", "4", "cpu_offload_gb", 4.0),
    ("MAX_CPU_LORAS", "8", "max_cpu_loras", 8),
    ("OTLP_TRACES_ENDPOINT", "http://otel:4317", "otlp_traces_endpoint", "http://otel:4317"),
    ("MODEL_LOADER_EXTRA_CONFIG", '{"concurrency": 4}', "model_loader_extra_config", {"concurrency": 4}),
    ("IGNORE_PATTERNS", "a/*,b/*", "ignore_patterns", ["a/*", "b/*"]),
    ("MM_PROCESSOR_KWARGS", "{'num_crops': 4}", "mm_processor_kwargs", {"num_crops": 4}),
    ("DISABLE_LOG_STATS", "true", "disable_log_stats", True),
    ("ENABLE_LOG_REQUESTS", "true", "enable_log_requests", True),
    ("DISABLE_LOG_REQUESTS", "false", "enable_log_requests", True),
    ("MAX_LOG_LEN", "0", "max_log_len", 0),
    ("ENABLE_LORA", "true", "enable_lora", True),
    ("MAX_LORAS", "4", "max_loras", 4),
    ("MAX_LORA_RANK", "64", "max_lora_rank", 64),
    ("LORA_DTYPE", "bfloat16", "lora_dtype", "bfloat16"),
    ("FULLY_SHARDED_LORAS", "true", "fully_sharded_loras", True),
    ("HF_OVERRIDES", '{"rope_theta": 1e6}', "hf_overrides", {"rope_theta": 1e6}),
    ("COMPILATION_CONFIG", '{"mode": 3}', "compilation_config", {"mode": 3}),
    ("COMPILATION_CONFIG", "3", "compilation_config", {"mode": 3}),
    ("POOLER_CONFIG", '{"pooling_type": "MEAN"}', "pooler_config", {"pooling_type": "MEAN"}),
    ("GENERATION_CONFIG", "vllm", "generation_config", "vllm"),
    ("OVERRIDE_GENERATION_CONFIG", "temperature=0.5", "override_generation_config", {"temperature": 0.5}),
    ("KV_OFFLOADING_BACKEND", "lmcache", "kv_offloading_backend", "lmcache"),
    ("KV_OFFLOADING_BACKEND", "lmcache", "disable_hybrid_kv_cache_manager", True),
    ("KV_OFFLOADING_SIZE", "8", "kv_offloading_size", 8.0),
    ("DISABLE_HYBRID_KV_CACHE_MANAGER", "true", "disable_hybrid_kv_cache_manager", True),
    ("ENABLE_SLEEP_MODE", "true", "enable_sleep_mode", True),
    ("MM_PROCESSOR_CACHE_GB", "0", "mm_processor_cache_gb", 0.0),
    ("DISABLE_MM_PREPROCESSOR_CACHE", "true", "mm_processor_cache_gb", 0.0),
    ("SAFETENSORS_LOAD_STRATEGY", "prefetch", "safetensors_load_strategy", "prefetch"),
    ("GUIDED_DECODING_BACKEND", "xgrammar", "structured_outputs_config", {"backend": "xgrammar"}),
    (
        "ROPE_THETA",
        "1000000",
        "hf_overrides",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    ("ATTENTION_BACKEND", "FLASHINFER", "attention_backend", "FLASHINFER"),
    ("VLLM_ATTENTION_BACKEND", "FLASHINFER", "attention_backend", "FLASHINFER"),
    ("ASYNC_SCHEDULING", "false", "async_scheduling", False),
    ("STREAM_INTERVAL", "4", "stream_interval", 4),
    ("CUSTOM_CHAT_TEMPLATE", "{{ messages }}", "chat_template", "{{ messages }}"),
    ("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "a,b", "served_model_name", ["a", "b"]),
    ("SERVED_MODEL_NAME", "a", "served_model_name", ["a"]),
    ("OPENAI_RESPONSE_ROLE", "model", "response_role", "model"),
    ("RESPONSE_ROLE", "model", "response_role", "model"),
    ("TOOL_CALL_PARSER", "hermes", "tool_call_parser", "hermes"),
    ("REASONING_PARSER", "qwen3", "reasoning_parser", "qwen3"),
    ("TRUST_REQUEST_CHAT_TEMPLATE", "true", "trust_request_chat_template", True),
    ("RETURN_TOKENS_AS_TOKEN_IDS", "true", "return_tokens_as_token_ids", True),
    ("EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE", "true", "exclude_tools_when_tool_choice_none", True),
    ("ENABLE_PROMPT_TOKENS_DETAILS", "true", "enable_prompt_tokens_details", True),
    ("ENABLE_FORCE_INCLUDE_USAGE", "true", "enable_force_include_usage", True),
    ("LOG_ERROR_STACK", "true", "log_error_stack", True),
    (
        "DEFAULT_CHAT_TEMPLATE_KWARGS",
        '{"enable_thinking": false}',
        "default_chat_template_kwargs",
        {"enable_thinking": False},
    ),
    ("TOOL_PARSER_PLUGIN", "/p.py", "tool_parser_plugin", "/p.py"),
    ("REASONING_PARSER_PLUGIN", "/p.py", "reasoning_parser_plugin", "/p.py"),
    ("CHAT_TEMPLATE_CONTENT_FORMAT", "openai", "chat_template_content_format", "openai"),
    ("HUGGING_FACE_HUB_TOKEN", "hf_0123456789", "hf_token", "hf_0123456789"),
    ("TASK", "embed", "runner", "pooling"),
    ("TASK", "embed", "convert", "embed"),
    ("TASK", "score", "convert", "classify"),
    ("TASK", "generate", "runner", "generate"),
]
"""Variable, its text, and the argument and value that it gives."""

SPOKEN_OF: dict[str, str] = {
    "BLOCK_SIZE": "16",
    "CALCULATE_KV_SCALES": "true",
    "CONCURRENCY_MODIFIER": "100",
    "CUDA_GRAPH_SIZES": "1,2",
    "DEVICE": "auto",
    "DISABLE_FRONTEND_MULTIPROCESSING": "true",
    "DISABLE_LOGGING_REQUEST": "true",
    "DISABLE_LOGPROBS_DURING_SPEC_DECODING": "true",
    "DISTRIBUTED_EXECUTOR_BACKEND": "mp",
    "ENABLE_CHUNKED_PREFILL": "false",
    "ENABLE_LORA_BIAS": "true",
    "ENABLE_MULTIMODAL_ENCODER_DATA_PARALLEL": "true",
    "ENABLE_PREFIX_CACHING": "false",
    "ENABLE_PROMPT_ADAPTER": "true",
    "ENABLE_REASONING": "true",
    "ENFORCE_EAGER": "true",
    "EPLB_LOG_BALANCEDNESS": "true",
    "EPLB_STEP_INTERVAL": "100",
    "EPLB_WINDOW_SIZE": "100",
    "GPU_MEMORY_UTILIZATION": "0.95",
    "GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES": "true",
    "GUIDED_DECODING_DISABLE_ANY_WHITESPACE": "true",
    "GUIDED_DECODING_DISABLE_FALLBACK": "true",
    "IMAGE_INPUT_TYPE": "pixel_values",
    "LOGITS_PROCESSOR_PATTERN": ".*",
    "LONG_LORA_SCALING_FACTORS": "4.0",
    "LORA_EXTRA_VOCAB_SIZE": "256",
    "MAX_CONTEXT_LEN_TO_CAPTURE": "8192",
    "MAX_LONG_PARTIAL_PREFILLS": "1",
    "MAX_NUM_PARTIAL_PREFILLS": "1",
    "MAX_NUM_SEQS": "256",
    "MAX_PARALLEL_LOADING_WORKERS": "1",
    "MAX_PROMPT_ADAPTERS": "1",
    "MAX_PROMPT_ADAPTER_TOKEN": "1",
    "MAX_SEQ_LEN_TO_CAPTURE": "8192",
    "MODEL_BASE_PATH": "/models",
    "NUM_GPU_SHARD": "2",
    "NUM_LOOKAHEAD_SLOTS": "0",
    "NUM_REDUNDANT_EXPERTS": "1",
    "NUM_SCHEDULER_STEPS": "1",
    "OVERRIDE_ATTENTION_DTYPE": "float16",
    "OVERRIDE_POOLER_CONFIG": "{}",
    "PREEMPTION_CHECK_PERIOD": "1",
    "PREEMPTION_CPU_CAPACITY": "2",
    "PREEMPTION_MODE": "swap",
    "QLORA_ADAPTER_NAME_OR_PATH": "org/a",
    "QUANTIZATION_PARAM_PATH": "/p.json",
    "RUNPOD_HUGGINGFACE_CACHE": "/cache",
    "SCHEDULER_DELAY_FACTOR": "0",
    "SPECULATIVE_DISABLE_BY_BATCH_SIZE": "4",
    "SPEC_DECODING_ACCEPTANCE_METHOD": "rejection_sampler",
    "STREAMING": "true",
    "SWAP_SPACE": "4",
    "TENSORIZER_URI": "s3://x",
    "TENSOR_PARALLEL_SIZE": "1",
    "TOKENIZER_MODE": "slow",
    "TOKENIZER_POOL_EXTRA_CONFIG": "{}",
    "TOKENIZER_POOL_SIZE": "0",
    "TOKENIZER_POOL_TYPE": "ray",
    "TRANSFORMERS_VERSION": "4.50",
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA": "1",
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD": "1",
    "USE_FULL_METRICS": "true",
    "USE_V2_BLOCK_MANAGER": "true",
    "VLLM_API_KEY": "swordfish",
    "VLLM_BASE_URL": "http://localhost:8000",
    "VLLM_RUNPOD_MAX_MODEL_LEN": "4096",
}
"""Variables without effect on vLLM 0.32, or with values that count as not chosen: each is in a warning."""


@pytest.mark.parametrize(("variable", "text", "argument", "expected"), DIRECT)
def test_each_living_variable_reaches_its_argument(
    variable: str, text: str, argument: str, expected: Any
) -> None:
    assert value(argument, {variable: text}) == expected


@pytest.mark.parametrize(("variable", "text"), SPOKEN_OF.items())
def test_each_dead_variable_and_not_chosen_value_is_in_one_warning(variable: str, text: str) -> None:
    resolved = configure({variable: text})
    # the warning may name it twice, as an example of VLLM_ARG_
    assert len(warnings_about(variable, resolved)) == 1
    assert not [name for name, effective in resolved.chosen().items() if effective.variable == variable]


@pytest.mark.parametrize("version", VERSIONS)
def test_dead_variables_stop_no_version(version: str) -> None:
    living = {argument.variable for argument in table(version).arguments}
    dead = {name: text for name, text in SPOKEN_OF.items() if name not in living}
    resolved = configure(dead, version=version)
    assert all(any(name in line for line in resolved.warnings) for name in dead)


def test_noise_of_forms_shares_one_line() -> None:
    resolved = configure(SWAP_SPACE="4", USE_V2_BLOCK_MANAGER="false", DEVICE="auto", TOKENIZER_POOL_SIZE="0")
    (line,) = resolved.warnings
    assert "DEVICE, SWAP_SPACE, TOKENIZER_POOL_SIZE, USE_V2_BLOCK_MANAGER" in line


def test_a_removed_argument_warns_with_what_replaced_it() -> None:
    (line,) = configure(OVERRIDE_POOLER_CONFIG="{}").warnings
    assert line == "OVERRIDE_POOLER_CONFIG has no effect: use POOLER_CONFIG"


def test_an_argument_that_only_some_versions_have_works_where_it_is() -> None:
    assert value("calculate_kv_scales", version="0.26.0", CALCULATE_KV_SCALES="true") is True
    assert warnings_about("CALCULATE_KV_SCALES", configure(CALCULATE_KV_SCALES="true", version="0.33.0"))


@pytest.mark.parametrize("text", ["", " ", "None", "none", "null"])
def test_unset_words_leave_every_argument_alone(text: str) -> None:
    """An image built with empty build arguments has empty variables; a form sends None for a select."""
    environ = {argument.variable: text for argument in table().arguments} | {"MODEL_NAME": "org/model"}
    resolved = configure(environ)
    assert set(resolved.chosen()) == {"model", "served_model_name"}
    assert resolved.warnings == ()


@pytest.mark.parametrize(
    "name",
    [
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "block_size",
        "num_gpu_blocks_override",
        "max_cpu_loras",
        "max_parallel_loading_workers",
        "tensor_parallel_size",
    ],
)
def test_zero_is_unset_where_vllm_refuses_it(name: str) -> None:
    resolved = configure({name.upper(): "0"})
    assert name not in resolved.chosen()
    assert resolved.warnings == ()


@pytest.mark.parametrize(("name", "zero"), [("seed", 0), ("cpu_offload_gb", 0.0), ("max_log_len", 0)])
def test_zero_is_a_value_elsewhere(name: str, zero: float) -> None:
    effective = {**(resolved := configure({name.upper(): "0"})).engine, **resolved.frontend}[name]
    assert (effective.value, effective.source) == (zero, "environment")


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "a", "path": "org/a"}, {"name": "b", "path": "/b", "base_model_name": "m"}]',
        "[{'name': 'a', 'path': 'org/a'}, {'name': 'b', 'path': '/b', 'base_model_name': 'm'}]",
        'a=org/a {"name":"b","path":"/b","base_model_name":"m"}',
    ],
)
def test_lora_modules_in_every_spelling(text: str) -> None:
    adapters = [{"name": "a", "path": "org/a"}, {"name": "b", "path": "/b", "base_model_name": "m"}]
    resolved = configure(LORA_MODULES=text)
    assert resolved.frontend["lora_modules"].value == adapters
    assert resolved.engine["enable_lora"].value is True


@pytest.mark.parametrize(
    "text", ["a=org/a", '{"name": "a", "path": "org/a"}', '{"a": "org/a"}', '["a=org/a"]']
)
def test_one_lora_module_in_every_spelling(text: str) -> None:
    assert value("lora_modules", LORA_MODULES=text) == [{"name": "a", "path": "org/a"}]


def test_several_lora_modules_as_words() -> None:
    """With blanks or commas between them."""
    both = [{"name": "a", "path": "x"}, {"name": "b", "path": "y"}]
    assert value("lora_modules", LORA_MODULES="a=x b=y") == both
    assert value("lora_modules", LORA_MODULES="a=x, b=y") == both


def test_adapters_win_over_the_forms_enable_lora_false() -> None:
    assert value("enable_lora", LORA_MODULES="a=x", ENABLE_LORA="false") is True


@pytest.mark.parametrize(
    "text", ["image=1,video=0", '{"image": 1, "video": 0}', "{'image': 1, 'video': 0}", "image=1, video=0"]
)
def test_limit_mm_per_prompt_in_both_spellings(text: str) -> None:
    assert value("limit_mm_per_prompt", LIMIT_MM_PER_PROMPT=text) == {"image": 1, "video": 0}


@pytest.mark.parametrize(
    ("environ", "config"),
    [
        (
            {
                "SPECULATIVE_CONFIG": '{"method": "ngram", "num_speculative_tokens": 4, '
                '"prompt_lookup_max": 4}'
            },
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4},
        ),
        (
            {"NGRAM_PROMPT_LOOKUP_MAX": "4", "NUM_SPECULATIVE_TOKENS": "3"},
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        ),
        (
            {"SPECULATIVE_MODEL": "org/Eagle3-x", "NUM_SPECULATIVE_TOKENS": "3"},
            {"method": "eagle3", "model": "org/Eagle3-x", "num_speculative_tokens": 3},
        ),
        (
            {"SPECULATIVE_MODEL": "org/EAGLE-x", "NUM_SPECULATIVE_TOKENS": "3"},
            {"method": "eagle", "model": "org/EAGLE-x", "num_speculative_tokens": 3},
        ),
        (
            {
                "SPECULATIVE_MODEL": "org/small",
                "NUM_SPECULATIVE_TOKENS": "3",
                "SPECULATIVE_MAX_MODEL_LEN": "2048",
                "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "1",
                "SPECULATIVE_QUANTIZATION": "fp8",
                "SPECULATIVE_MODEL_REVISION": "v1",
            },
            {
                "method": "draft_model",
                "model": "org/small",
                "num_speculative_tokens": 3,
                "max_model_len": 2048,
                "draft_tensor_parallel_size": 1,
                "quantization": "fp8",
                "revision": "v1",
            },
        ),
        ({"SPECULATIVE_METHOD": "suffix", "NUM_SPECULATIVE_TOKENS": "0"}, {"method": "suffix"}),
        ({"SPECULATIVE_METHOD": "", "NUM_SPECULATIVE_TOKENS": "0", "NGRAM_PROMPT_LOOKUP_MAX": "0"}, None),
        ({}, None),
    ],
)
def test_speculative_decoding_from_json_and_from_the_old_variables(
    environ: dict[str, str], config: dict[str, Any] | None
) -> None:
    assert value("speculative_config", environ) == config


def test_speculative_config_wins_over_the_old_variables_and_says_so() -> None:
    resolved = configure(SPECULATIVE_CONFIG='{"method": "suffix"}', SPECULATIVE_MODEL="org/small")
    assert resolved.engine["speculative_config"].value == {"method": "suffix"}
    assert warnings_about("SPECULATIVE_MODEL", resolved)


def test_a_lonely_count_of_speculative_tokens_is_spoken_of() -> None:
    assert warnings_about("NUM_SPECULATIVE_TOKENS", configure(NUM_SPECULATIVE_TOKENS="3"))


def test_rope_scaling_is_folded_into_the_overrides() -> None:
    overrides = value("hf_overrides", ROPE_SCALING=YARN, ROPE_THETA="5e5", HF_OVERRIDES='{"x": 1}')
    assert overrides["x"] == 1
    assert overrides["rope_parameters"]["rope_type"] == "yarn"
    assert overrides["rope_parameters"]["rope_theta"] == 500_000.0


def test_the_old_type_of_rope_scaling_has_a_new_name() -> None:
    overrides = value("hf_overrides", ROPE_SCALING='{"type": "linear", "factor": 2}')
    assert overrides == {"rope_parameters": {"rope_type": "linear", "factor": 2}}


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 1e6},
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
        {"text_config": {"rope_theta": 1e6, "rope_scaling": {"type": "linear"}}},
    ],
)
def test_rope_scaling_keeps_the_models_own_base(config: dict[str, Any]) -> None:
    """An override replaces the parameters whole, and vLLM's default base is not every model's."""
    resolved = configure(config=config, ROPE_SCALING='{"rope_type": "linear", "factor": 2}')
    parameters = {"rope_type": "linear", "factor": 2, "rope_theta": 1e6}
    assert resolved.engine["hf_overrides"].value == {"rope_parameters": parameters}
    assert resolved.warnings == ()


def test_an_unknown_base_is_spoken_of() -> None:
    assert warnings_about(
        "set ROPE_THETA to it", configure(ROPE_SCALING='{"rope_type": "linear", "factor": 2}')
    )


def test_bitsandbytes_implies_its_quantization_where_vllm_has_it() -> None:
    assert value("quantization", version="0.26.0", LOAD_FORMAT="bitsandbytes") == "bitsandbytes"


def test_lmcache_switches_the_hybrid_cache_manager_off() -> None:
    connector = "{'kv_connector': 'LMCacheConnectorV1', 'kv_role': 'kv_both'}"
    assert value("disable_hybrid_kv_cache_manager", KV_TRANSFER_CONFIG=connector) is True
    assert value("kv_transfer_config", KV_TRANSFER_CONFIG=connector)["kv_role"] == "kv_both"


def test_the_alias_wins_and_the_difference_is_spoken_of() -> None:
    resolved = configure(TOKENIZER="org/a", TOKENIZER_NAME="org/b")
    assert resolved.engine["tokenizer"].value == "org/b"
    assert warnings_about("TOKENIZER is not used", resolved)


def test_an_inverse_flag_of_a_newer_vllm_is_a_variable_too() -> None:
    """vLLM 0.33 takes --disable-prefix-caching for --no-enable-prefix-caching."""
    assert value("enable_prefix_caching", version="0.33.0", DISABLE_PREFIX_CACHING="true") is False


def test_the_second_name_of_an_argument_is_a_variable_too() -> None:
    assert value("gpu_memory_utilization", DEVICE_MEMORY_UTILIZATION="0.5") == 0.5


def test_ports_and_addresses_of_the_surroundings_do_not_configure_the_engine() -> None:
    cluster = {
        "MASTER_ADDR": "10.65.0.2",
        "MASTER_PORT": "29500",
        "NODE_RANK": "1",
        "NNODES": "2",
        "HOST": "::",
        "PORT": "80",
        "API_KEY": "k",
        "HELP": "1",
        "CONFIG": "/x",
        "HEADLESS": "1",
    }
    resolved = configure(cluster)
    assert set(resolved.chosen()) == {"model", "served_model_name"}
    assert len(resolved.warnings) == 1


def test_log_level_is_the_workers_own() -> None:
    resolved = configure(LOG_LEVEL="debug")
    assert resolved.worker.log_level == "debug"
    assert resolved.engine["log_level"].source == "default"


def test_a_prefixed_name_means_the_argument_whatever_else_the_name_means() -> None:
    resolved = configure(
        VLLM_ARG_MASTER_ADDR="10.0.0.1", VLLM_ARG_LOG_LEVEL="DEBUG", VLLM_ARG_BLOCK_SIZE="16"
    )
    values = {name: resolved.engine[name].value for name in ("master_addr", "log_level", "block_size")}
    assert values == {"master_addr": "10.0.0.1", "log_level": "DEBUG", "block_size": 16}
    assert resolved.warnings == ()


def test_variables_of_vllm_itself_pass_untouched() -> None:
    own = {"VLLM_PORT": "29500", "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_USE_DEEP_GEMM": "0"}
    resolved = configure(own)
    assert resolved.warnings == ()
    assert not own.keys() & resolved.environment.keys()


def test_the_time_limit_of_the_earlier_start_becomes_vllms_own() -> None:
    assert configure(VLLM_STARTUP_TIMEOUT="1200").environment["VLLM_ENGINE_READY_TIMEOUT_S"] == "1200"


def known_to_the_worker(resolved: Configuration) -> set[str]:
    return {name for setting in resolved.worker_effective for name in settings.names(setting)}


def test_every_worker_variable_of_the_contract_is_a_setting() -> None:
    assert {
        "MAX_CONCURRENCY",
        "DEFAULT_BATCH_SIZE",
        "MIN_BATCH_SIZE",
        "DEFAULT_MIN_BATCH_SIZE",
        "RAW_OPENAI_OUTPUT",
        "BATCH_SIZE_GROWTH_FACTOR",
        "DEFAULT_BATCH_SIZE_GROWTH_FACTOR",
        "REQUEST_TIMEOUT",
    } <= known_to_the_worker(configure())
