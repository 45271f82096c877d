"""What the forms and the documentation offer, in which order and under which title: data.
 Types, choices and help come from vLLM's own table and from the worker's settings; here stands only what
neither says. Every argument of vLLM can be set, offered or not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """One setting that is offered.

    Attributes:
        name: an argument of vLLM, or a worker setting.
        title: its label; made of the name if None.
        default: what the form sends, where it should send something.
        reason: why that differs from what happens when nothing is sent.
        help: said instead of vLLM's own words, where those are about its command line.
        suggestions: values to pick from, where vLLM takes any text.
    """

    name: str
    title: str | None = None
    default: str | int | float | bool | None = None
    reason: str | None = None
    help: str | None = None
    suggestions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """Settings that belong together."""

    title: str
    items: tuple[Item, ...]


ENGINE_GROUPS: tuple[Group, ...] = (
    Group(
        "Model",
        (
            Item(
                "model",
                "Model",
                help="Repository on Hugging Face, as in org/name, or a path in the image or volume.",
            ),
            Item("revision", "Model revision", help="Branch, tag or commit of the model's repository."),
            Item(
                "served_model_name",
                "Served model names",
                help="What clients call the model; several with commas between them. Unset: the "
                "repository's name.",
            ),
            Item(
                "max_model_len",
                "Longest context",
                help="Tokens of prompt and answer together: 8192, 8k (8000), 8K (8192), or auto "
                "for what fits into memory. Unset: the model's own limit.",
            ),
            Item("dtype", "Data type"),
            Item(
                "quantization",
                "Quantization",
                help="How the weights are quantized; unset: what the model's own configuration says.",
            ),
            Item("kv_cache_dtype", "KV cache data type"),
            Item(
                "trust_remote_code",
                "Trust remote code",
                help="Run Python code that the model's repository brings.",
            ),
            Item(
                "tokenizer", "Tokenizer", help="Repository or path of another tokenizer than the model's own."
            ),
            Item("tokenizer_revision", "Tokenizer revision"),
            Item("tokenizer_mode", "Tokenizer mode"),
            Item(
                "chat_template",
                "Chat template",
                help="Jinja text in one line, or a path; unset: the model's own.",
            ),
            Item("runner", "Runner"),
            Item("convert", "Convert"),
            Item("load_format", "Load format"),
            Item("model_loader_extra_config", "Loader options"),
            Item("download_dir", "Download folder"),
            Item(
                "hf_overrides",
                "Overrides of the model's configuration",
                help="JSON that replaces values of the model's config.json.",
            ),
            Item("generation_config", "Generation configuration"),
            Item("override_generation_config", "Default sampling parameters"),
        ),
    ),
    Group(
        "Memory and speed",
        (
            Item("gpu_memory_utilization", "GPU memory share"),
            Item(
                "max_num_seqs",
                "Sequences in a batch",
                help="Most sequences that the engine runs together. Unset: vLLM chooses by GPU, up to 1024.",
            ),
            Item(
                "max_num_batched_tokens",
                "Tokens in a batch",
                help="Most tokens in one step of the engine. Unset: vLLM chooses by GPU, 2048 to 16384.",
            ),
            Item(
                "enable_prefix_caching",
                "Prefix caching",
                help="Keep what was computed for the beginnings of prompts. Unset: on, where the model "
                "allows it.",
            ),
            Item(
                "enable_chunked_prefill",
                "Chunked prefill",
                help="Compute long prompts in pieces between the steps of others. Unset: on, where the model "
                "allows it.",
            ),
            Item(
                "enforce_eager",
                "No CUDA graphs",
                help="Start sooner and use less memory, but generate more slowly.",
            ),
            Item("attention_backend", "Attention backend"),
            Item("cpu_offload_gb", "Weights in host memory (GiB)"),
            Item("kv_offloading_size", "KV cache in host memory (GiB)"),
            Item("max_num_queued_reqs", "Longest queue in the engine"),
            Item("compilation_config", "Compilation"),
            Item("seed", "Seed"),
        ),
    ),
    Group(
        "GPUs",
        (
            Item(
                "tensor_parallel_size",
                "Tensor parallel size",
                help="GPUs that share each layer. Unset: as many of the worker's GPUs as divide "
                "the model's attention heads.",
            ),
            Item("pipeline_parallel_size", "Pipeline parallel size"),
            Item("data_parallel_size", "Data parallel size"),
            Item("enable_expert_parallel", "Expert parallel"),
            Item("distributed_executor_backend", "Executor backend"),
            Item("disable_custom_all_reduce", "No custom all-reduce"),
        ),
    ),
    Group(
        "Chat, tools and reasoning",
        (
            Item("enable_auto_tool_choice", "Tools at the model's choice"),
            Item("tool_call_parser", "Tool call parser", help="The format in which the model calls tools."),
            Item("reasoning_parser", "Reasoning parser", help="The format in which the model thinks aloud."),
            Item(
                "default_chat_template_kwargs",
                "Chat template options",
                help='Options for the chat template, such as {"enable_thinking": false}.',
            ),
            Item("chat_template_content_format", "Content format"),
            Item("response_role", "Role of answers"),
        ),
    ),
    Group(
        "Adapters and speculation",
        (
            Item(
                "lora_modules",
                "LoRA adapters",
                help='name=path, or JSON: [{"name": "a", "path": "org/adapter"}]. Switches adapters on.',
            ),
            Item("max_loras", "Adapters in a batch"),
            Item("max_lora_rank", "Largest adapter rank"),
            Item("max_cpu_loras", "Adapters in host memory"),
            Item(
                "speculative_config",
                "Speculative decoding",
                help='JSON, such as {"method": "ngram", "num_speculative_tokens": 4, '
                '"prompt_lookup_max": 4}.',
            ),
        ),
    ),
    Group(
        "Images, audio and video",
        (
            Item(
                "limit_mm_per_prompt",
                "Items in a prompt",
                help='How many of each kind a prompt may hold: image=2,video=0 or {"image": 2}.',
            ),
            Item("language_model_only", "Text only"),
            Item("mm_processor_kwargs", "Processor options"),
            Item("mm_processor_cache_gb", "Processor cache (GiB)"),
            Item("allowed_media_domains", "Allowed media domains"),
        ),
    ),
    Group(
        "Logs and metrics",
        (
            Item(
                "enable_log_requests",
                "Log requests",
                help="Log each request's id and parameters, and at the debug level its prompt.",
            ),
            Item("disable_log_stats", "No statistics"),
            Item("max_log_len", "Logged prompt length"),
            Item("otlp_traces_endpoint", "OpenTelemetry endpoint"),
        ),
    ),
)
"""vLLM's arguments that are worth offering."""

WORKER_GROUPS: tuple[Group, ...] = (
    Group(
        "Jobs",
        (
            Item("max_concurrency", "Jobs at once"),
            Item("default_max_tokens", "Default answer length"),
            Item("request_timeout_s", "Time limit of a job (s)"),
            Item("first_token_timeout_s", "Time limit of the first token (s)"),
            Item("worker_routes", "Open routes"),
            Item("openai_errors", "Errors of OpenAI clients"),
        ),
    ),
    Group(
        "Media",
        (
            Item("media_max_mb", "Largest media file (MB)"),
            Item("media_fetch_timeout_s", "Time limit of a media URL (s)"),
            Item("media_allowed_private", "Private hosts of media"),
        ),
    ),
    Group(
        "Streaming",
        (
            Item("default_batch_size", "Tokens in a chunk"),
            Item("min_batch_size", "Tokens in the first chunk"),
            Item("batch_size_growth_factor", "Growth of chunks"),
            Item("raw_openai_output", "Raw OpenAI output"),
            Item("max_chunk_bytes", "Largest chunk (bytes)"),
        ),
    ),
    Group(
        "Worker",
        (
            Item("log_format", "Log format"),
            Item("log_level", "Log level"),
            Item("startup_failure", "When a start fails"),
            Item("worker_state_file", "State file"),
            Item("shutdown_grace_s", "Time to finish at shutdown (s)"),
            Item("engine_stall_s", "Time until a stall counts as death (s)"),
        ),
    ),
)
"""Every worker setting."""

OF_THE_IMAGE: frozenset[str] = frozenset({"WORKER_STATE_FILE"})
"""Variables that the image sets; the forms do not offer them, since a blank would unset them."""

EXTRAS: tuple[tuple[str, str, str], ...] = (
    (
        "VLLM_EXTRA_ARGS",
        "More arguments",
        "Arguments as on vLLM's command line, such as --max-logprobs 40; they win over everything else.",
    ),
    (
        "VLLM_CONFIG_FILE",
        "Configuration file",
        "Path of a YAML file with vLLM's arguments; everything else wins over it. Unset: "
        "/vllm_config.yaml if there is one.",
    ),
)
"""Variables that say where more configuration is: name, title, help."""
