"""Names of variables that are not simply an argument's name in upper case: data, each with its reason.
 Sources: the public history of runpod's worker-vllm (its two forms, its READMEs and its code) and the
arguments that vLLM has dropped since 2023. An entry about an argument applies only where the installed vLLM
lacks that argument.
"""

from __future__ import annotations

ALIASES: dict[str, tuple[str, ...]] = {
    "model": ("MODEL_NAME", "MODEL"),
    "revision": ("MODEL_REVISION", "REVISION"),
    "tokenizer": ("TOKENIZER_NAME", "TOKENIZER"),
    "max_model_len": ("MAX_MODEL_LEN", "MAX_MODEL_LENGTH"),
    "chat_template": ("CUSTOM_CHAT_TEMPLATE", "CHAT_TEMPLATE"),
    "served_model_name": ("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "SERVED_MODEL_NAME"),
    "response_role": ("OPENAI_RESPONSE_ROLE", "RESPONSE_ROLE"),
    "hf_token": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    # gone from vLLM's environment in 0.26, still in many templates
    "attention_backend": ("ATTENTION_BACKEND", "VLLM_ATTENTION_BACKEND"),
}
"""Argument to its variables, the strongest first; every other argument has its own name alone."""

DENIED: dict[str, str] = {
    "HOST": "a generic name; the worker opens no port",
    "PORT": "a generic name, set by platforms; the worker opens no port",
    "MASTER_ADDR": "set by clusters for torch.distributed",
    "MASTER_PORT": "set by clusters for torch.distributed",
    "NODE_RANK": "set by clusters",
    "NNODES": "set by clusters",
    "API_KEY": "a generic name; RunPod checks keys before a job reaches the worker",
    "MIDDLEWARE": "a generic name, and what it names would be imported",
    "ROOT_PATH": "a generic name; the worker opens no port",
    "UDS": "a generic name; the worker opens no port",
}
"""Names of arguments that are also names of the surroundings. They do not reach vLLM; VLLM_ARG_<NAME>,
VLLM_EXTRA_ARGS or the configuration file do."""

SURROUNDINGS: frozenset[str] = frozenset({"HELP", "CONFIG", "HEADLESS", "GRPC", "LOG_LEVEL"})
"""Names of vLLM's arguments that mean something else here: the worker's own setting, or nothing at all."""

NO_PORT: tuple[str, ...] = (
    "host", "port", "uds", "grpc_port", "api_key", "root_path", "uvicorn_log_level",
    "disable_uvicorn_access_log", "disable_access_log_for_endpoints", "allow_credentials", "allowed_origins",
    "allowed_methods", "allowed_headers", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs",
    "ssl_ciphers", "enable_ssl_refresh", "h11_max_incomplete_event_size", "h11_max_header_count",
    "data_parallel_supervisor_port", "dp_supervisor_probe_interval_s", "dp_supervisor_probe_timeout_s",
    "dp_supervisor_probe_failure_threshold",
)  # fmt: skip
"""Arguments of the HTTP server that `vllm serve` would open. This worker opens none: jobs come through
RunPod."""

ZERO_MEANS_UNSET: frozenset[str] = frozenset({
    "max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size", "num_gpu_blocks_override",
    "max_cpu_loras", "max_loras", "max_parallel_loading_workers", "tensor_parallel_size",
    "pipeline_parallel_size", "data_parallel_size", "kv_cache_memory_bytes", "stream_interval",
    "renderer_num_workers", "spec_tokens", "gpu_memory_utilization",
})  # fmt: skip
"""Arguments for which 0 is not a value: forms send it for "default". Elsewhere (seed, cpu_offload_gb, …) it
is one."""

FORM_DEFAULTS: dict[str, tuple[tuple[object, ...], str]] = {
    "block_size": ((16,), "vLLM picks the size that the attention backend runs best"),
    "distributed_executor_backend": (("mp",), "on one GPU it adds a process and copies for nothing"),
    "enable_chunked_prefill": ((False,), "long prompts then block everyone's answers"),
    "enable_prefix_caching": ((False,), "repeated prompts are then computed again"),
    "enforce_eager": ((True,), "generation is slower without CUDA graphs"),
    "gpu_memory_utilization": ((0.95,), "it leaves too little room beside the KV cache"),
    "max_num_seqs": ((256,), "it caps large GPUs, for which vLLM chooses 1024"),
    "max_parallel_loading_workers": ((1,), "vLLM ignores it, with a warning"),
    "tensor_parallel_size": ((1,), "it kept the other GPUs of a worker idle"),
}
"""What runpod's Hub forms sent for everybody and did harm: argument to those values, and the harm. From an
environment they count as not chosen; VLLM_ARG_<NAME>, VLLM_EXTRA_ARGS and the configuration file mean
them."""

REMOVED: dict[str, str] = {
    "CALCULATE_KV_SCALES": "vLLM dropped it; scales come from the checkpoint",
    "CONCURRENCY_MODIFIER": "use MAX_CONCURRENCY",
    "CUDAGRAPH_SIZES": "use CUDAGRAPH_CAPTURE_SIZES",
    "CUDA_GRAPH_SIZES": "use CUDAGRAPH_CAPTURE_SIZES",
    "DISABLE_FRONTEND_MULTIPROCESSING": "the worker always runs vLLM's app in its own process",
    "DISABLE_LOGPROBS_DURING_SPEC_DECODING": "vLLM dropped it",
    "ENABLE_BF16X3_ROUTER_GEMM": "vLLM dropped it",
    "ENABLE_LORA_BIAS": "vLLM dropped it; adapters with a bias are not supported",
    "ENABLE_MULTIMODAL_ENCODER_DATA_PARALLEL": "use MM_ENCODER_TP_MODE=data",
    "ENABLE_PROMPT_ADAPTER": "vLLM dropped prompt adapters; use LORA_MODULES",
    "ENABLE_REASONING": "REASONING_PARSER alone switches reasoning on",
    "EPLB_LOG_BALANCEDNESS": "use EPLB_CONFIG__log_balancedness",
    "EPLB_STEP_INTERVAL": "use EPLB_CONFIG__step_interval",
    "EPLB_WINDOW_SIZE": "use EPLB_CONFIG__window_size",
    "GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES":
        "use STRUCTURED_OUTPUTS_CONFIG__disable_additional_properties",
    "GUIDED_DECODING_DISABLE_ANY_WHITESPACE": "use STRUCTURED_OUTPUTS_CONFIG__disable_any_whitespace",
    "GUIDED_DECODING_DISABLE_FALLBACK": "vLLM dropped it; the backend falls back only when it is auto",
    "IMAGE_INPUT_TYPE": "vLLM takes what the model takes",
    "LOGITS_PROCESSOR_PATTERN": "use LOGITS_PROCESSORS",
    "MAX_LONG_PARTIAL_PREFILLS": "vLLM dropped it",
    "MAX_NUM_PARTIAL_PREFILLS": "vLLM dropped it",
    "MAX_PROMPT_ADAPTERS": "vLLM dropped prompt adapters; use LORA_MODULES",
    "MAX_PROMPT_ADAPTER_TOKEN": "vLLM dropped prompt adapters; use LORA_MODULES",
    "MODEL_BASE_PATH": "use HF_HOME or DOWNLOAD_DIR",
    "NUM_GPU_SHARD": "use TENSOR_PARALLEL_SIZE",
    "NUM_REDUNDANT_EXPERTS": "use EPLB_CONFIG__num_redundant_experts",
    "OVERRIDE_ATTENTION_DTYPE": "vLLM dropped it",
    "OVERRIDE_POOLER_CONFIG": "use POOLER_CONFIG",
    "QLORA_ADAPTER_NAME_OR_PATH": "use LORA_MODULES",
    "QUANTIZATION_PARAM_PATH": "vLLM dropped it; scales come from the checkpoint",
    "RUNPOD_HUGGINGFACE_CACHE": "use HF_HOME",
    "SPECULATIVE_DISABLE_BY_BATCH_SIZE": "use num_speculative_tokens_per_batch_size in SPECULATIVE_CONFIG",
    "TENSORIZER_URI": "use LOAD_FORMAT=tensorizer with MODEL_LOADER_EXTRA_CONFIG",
    "TRANSFORMERS_VERSION": "install another transformers in your own image; its pair with vLLM is tested",
    "USE_FULL_METRICS": "native jobs always report usage",
    "VLLM_API_KEY": "RunPod checks keys before a job reaches the worker; there is no port to guard",
    "VLLM_BASE_URL": "vLLM runs inside the worker, not behind an address",
}  # fmt: skip
"""Settings that are gone, with what to do instead. Each warns once."""

FORM_NOISE: frozenset[str] = frozenset({
    "DEVICE", "DISABLE_LOGGING_REQUEST", "LONG_LORA_SCALING_FACTORS", "LORA_EXTRA_VOCAB_SIZE",
    "MAX_CONTEXT_LEN_TO_CAPTURE", "MAX_SEQ_LEN_TO_CAPTURE", "NUM_LOOKAHEAD_SLOTS", "NUM_SCHEDULER_STEPS",
    "PREEMPTION_CHECK_PERIOD", "PREEMPTION_CPU_CAPACITY", "PREEMPTION_MODE", "SCHEDULER_DELAY_FACTOR",
    "SPEC_DECODING_ACCEPTANCE_METHOD", "STREAMING", "SWAP_SPACE", "TENSORIZE",
    "TOKENIZER_POOL_EXTRA_CONFIG", "TOKENIZER_POOL_SIZE", "TOKENIZER_POOL_TYPE",
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA", "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD",
    "USE_V2_BLOCK_MANAGER",
})  # fmt: skip
"""Settings that the old forms sent whether or not anybody wanted them, and that mean nothing to today's
vLLM. They share one line."""

TRANSLATED: frozenset[str] = frozenset({
    "DISABLE_LOG_REQUESTS", "DISABLE_MM_PREPROCESSOR_CACHE", "GUIDED_DECODING_BACKEND",
    "NGRAM_PROMPT_LOOKUP_MAX", "NGRAM_PROMPT_LOOKUP_MIN", "NUM_SPECULATIVE_TOKENS", "ROPE_SCALING",
    "ROPE_THETA", "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE", "SPECULATIVE_MAX_MODEL_LEN",
    "SPECULATIVE_METHOD", "SPECULATIVE_MODEL", "SPECULATIVE_MODEL_REVISION", "SPECULATIVE_QUANTIZATION",
    "SPECULATIVE_ENFORCE_EAGER", "TASK", "VLLM_STARTUP_TIMEOUT", "WORKER_USE_RAY",
})  # fmt: skip
"""Old settings that still work: `configuration/translations.py` turns them into today's arguments."""

OWN: frozenset[str] = frozenset({"VLLM_CONFIG_FILE", "VLLM_EXTRA_ARGS"})
"""Variables that say where more configuration is."""

PLACES: frozenset[str] = frozenset({"BASE_PATH"})
"""Variables that say where files are, beside the hub library's own: see `models/cache.py`."""

ARGUMENT_PREFIX = "VLLM_ARG_"
"""VLLM_ARG_<NAME> sets vLLM's argument <NAME>, whatever <NAME> alone would mean."""

MISNOMERS: dict[str, str] = {
    "BATCH_SIZE": "DEFAULT_BATCH_SIZE",
    "CONTEXT_LENGTH": "MAX_MODEL_LEN",
    "DTYPE_KV_CACHE": "KV_CACHE_DTYPE",
    "GPU_UTILIZATION": "GPU_MEMORY_UTILIZATION",
    "GROWTH_FACTOR": "BATCH_SIZE_GROWTH_FACTOR",
    "MAX_BATCH_SIZE": "DEFAULT_BATCH_SIZE",
    "MAX_CONTEXT_LENGTH": "MAX_MODEL_LEN",
    "MAX_TOKENS": "DEFAULT_MAX_TOKENS",
    "MODEL_ID": "MODEL_NAME",
    "MODEL_PATH": "MODEL_NAME",
    "QUANT": "QUANTIZATION",
    "TP_SIZE": "TENSOR_PARALLEL_SIZE",
}
"""Names that people write for another, which spelling alone would not find."""

FOREIGN_PREFIXES: tuple[str, ...] = (
    "AWS_", "AZURE_", "BASH", "BUCKET_", "CONDA_", "CUBLAS_", "CUDA_", "CUDNN_", "DATADOG_", "DD_",
    "DEBIAN_", "DEEPGEMM_", "DG_", "DOCKER_", "FLASHINFER_", "GCP_", "GIT_", "GLOO_", "GOOGLE_",
    "GRPC_", "HF_", "HUGGING", "KUBERNETES_", "LC_", "LD_", "LMCACHE_", "MKL_", "NCCL_", "NIXL_",
    "NVIDIA_", "NVSHMEM_", "NV_", "OMP_", "OPENBLAS_", "OTEL_", "PIP_", "PROMETHEUS_", "PYTEST_",
    "PYTHON", "PYTORCH_", "RAYON_", "RAY_", "RUNPOD_", "S3_", "SSH_", "SSL_CERT_", "TOKENIZERS_",
    "TORCH", "TRANSFORMERS_", "TRITON_", "TRT_", "UCX_", "UV_", "XDG_", "npm_",
)  # fmt: skip
"""Variables of other software: no guess is made about them."""

FOREIGN: frozenset[str] = frozenset({
    "CACHE_DIR", "DATA_DIR", "DEBUG", "DISPLAY", "EDITOR", "HOME", "HOSTNAME", "LANG", "LANGUAGE",
    "LOGNAME", "MAIL", "MODEL_DIR", "NUM_NODES", "PATH", "PUBLIC_KEY", "PWD", "SHELL", "SHLVL", "TERM",
    "TMPDIR", "TZ", "USER", "WORLD_SIZE", "HOST_NODE_ADDR", "PRIMARY_ADDR", "PRIMARY_PORT", "NODE_ADDR",
    "NUM_TRAINERS", "DISTRIBUTED_TIMEOUT", "RANK", "LOCAL_RANK",
})  # fmt: skip
"""Other common names that some argument's name happens to resemble."""
