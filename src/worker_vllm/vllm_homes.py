"""Where vLLM keeps the names that this worker uses, in 0.26 to 0.33: data for `vllm_compat.load`."""

from __future__ import annotations

HOMES: dict[str, tuple[str, ...]] = {
    "AsyncEngineArgs": ("vllm.engine.arg_utils",),
    "AsyncMPClient": ("vllm.v1.engine.core_client",),
    "AsyncLLM": ("vllm.v1.engine.async_llm",),
    "AttentionBackendEnum": ("vllm.v1.attention.backends.registry",),
    "ChatCompletionRequest": ("vllm.entrypoints.openai.chat_completion.protocol",),
    "CompletionRequest": ("vllm.entrypoints.openai.completion.protocol",),
    "EngineDeadError": ("vllm.v1.engine.exceptions",),
    "EngineGenerateError": ("vllm.v1.engine.exceptions",),
    "DEFAULT_LOGGING_CONFIG": ("vllm.logger",),
    "ErrorResponse": ("vllm.entrypoints.serve.engine.protocol", "vllm.entrypoints.openai.engine.protocol"),
    "FlexibleArgumentParser": ("vllm.utils.argparse_utils",),
    "GenerationError": ("vllm.exceptions", "vllm.entrypoints.openai.engine.protocol"),
    "LoRARequest": ("vllm.lora.request",),
    "HTTPConnection": ("vllm.connections",),
    "LoadFormats": ("vllm.model_executor.model_loader",),
    "MediaConnector": ("vllm.multimodal.media",),
    "QUANTIZATION_METHODS": ("vllm.model_executor.layers.quantization",),
    "ReasoningParserManager": ("vllm.reasoning",),
    "RepetitionDetectionParams": ("vllm.sampling_params",),
    "RequestOutputKind": ("vllm.sampling_params",),
    "SamplingParams": ("vllm.sampling_params",),
    "SpeculativeConfig": ("vllm.config",),
    "StatLoggerBase": ("vllm.v1.metrics.loggers",),
    "StructuredOutputsParams": ("vllm.sampling_params",),
    "ToolParserManager": ("vllm.tool_parsers",),
    "TokenizerRegistry": ("vllm.tokenizers.registry",),
    "UsageContext": ("vllm.usage.usage_lib",),
    "VLLMValidationError": ("vllm.exceptions",),
    "current_platform": ("vllm.platforms",),
    "envs": ("vllm",),
    "build_app": ("vllm.entrypoints.launchers.app", "vllm.entrypoints.openai.api_server"),
    "environment_variables": ("vllm.envs",),
    "get_num_threads": ("torch",),
    "global_http_connection": ("vllm.connections",),
    "init_app_state": (
        "vllm.entrypoints.launchers.api_server.app_state",
        "vllm.entrypoints.openai.api_server",
    ),
    "make_arg_parser": (
        "vllm.entrypoints.common.cli_args",
        "vllm.entrypoints.launchers.cli_args",
        "vllm.entrypoints.openai.cli_args",
    ),
    "sched_yield": ("vllm.distributed.utils",),
    "set_num_threads": ("torch",),
    "validate_api_server_args": (
        "vllm.entrypoints.launchers.launcher",
        "vllm.entrypoints.openai.api_server",
    ),
    "validate_parsed_serve_args": (
        "vllm.entrypoints.common.cli_args",
        "vllm.entrypoints.launchers.cli_args",
        "vllm.entrypoints.openai.cli_args",
    ),
}
"""Names that every supported version has: name to modules, the newest home first."""

OPTIONAL_HOMES: dict[str, tuple[str, ...]] = {
    "StrictDataclassError": ("huggingface_hub.errors",),  # model configurations that check their own types
    "GracefulHTTPError": ("vllm.exceptions",),  # 0.30: admission control, with the status it wants
    "RetryableRequestError": ("vllm.exceptions",),  # 0.30
    "SpinCondition": ("vllm.distributed.device_communicators.shm_broadcast",),  # private; see `vllm_queues`
    "VLLMClientError": ("vllm.exceptions",),  # 0.28: before that, plain ValueErrors
    "VLLMNotFoundError": ("vllm.exceptions",),
    "VLLMUnprocessableEntityError": ("vllm.exceptions",),
    "configure_logging_from_args": ("vllm.logger",),  # 0.32: --logging-config must reach the children
    "propagate_flash_late_interaction": (  # 0.32: an option of the front end that the engine must hear of
        "vllm.entrypoints.common.cli_args",
        "vllm.entrypoints.launchers.cli_args",
    ),
}
"""Names that only some supported versions have, with what they are for."""
