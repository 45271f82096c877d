"""Models that people deploy, with the settings that each wants: data for the Hub's form."""

from __future__ import annotations

from typing import Any

PRESETS: tuple[dict[str, Any], ...] = (
    {
        "name": "Qwen3 8B",
        "defaults": {
            "MODEL_NAME": "Qwen/Qwen3-8B",
            "MAX_MODEL_LEN": "32768",
            "REASONING_PARSER": "qwen3",
            "TOOL_CALL_PARSER": "hermes",
            "ENABLE_AUTO_TOOL_CHOICE": True,
        },
    },
    {
        "name": "Qwen3 30B A3B FP8",
        "defaults": {
            "MODEL_NAME": "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8",
            "MAX_MODEL_LEN": "65536",
            "TOOL_CALL_PARSER": "hermes",
            "ENABLE_AUTO_TOOL_CHOICE": True,
        },
    },
    {
        "name": "Llama 3.1 8B Instruct",
        "defaults": {
            "MODEL_NAME": "meta-llama/Llama-3.1-8B-Instruct",
            "MAX_MODEL_LEN": "32768",
            "TOOL_CALL_PARSER": "llama3_json",
            "ENABLE_AUTO_TOOL_CHOICE": True,
        },
    },
    {
        "name": "Mistral Small 3.2 24B",
        "defaults": {
            "MODEL_NAME": "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
            "TOKENIZER_MODE": "mistral",
            "MAX_MODEL_LEN": "32768",
            "LIMIT_MM_PER_PROMPT": "image=4",
            "TOOL_CALL_PARSER": "mistral",
            "ENABLE_AUTO_TOOL_CHOICE": True,
        },
    },
    {
        "name": "gpt-oss 20B",
        "defaults": {
            "MODEL_NAME": "openai/gpt-oss-20b",
            "TOOL_CALL_PARSER": "openai",
            "ENABLE_AUTO_TOOL_CHOICE": True,
        },
    },
    {
        "name": "DeepSeek R1 Distill Llama 8B",
        "defaults": {
            "MODEL_NAME": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
            "MAX_MODEL_LEN": "32768",
            "REASONING_PARSER": "deepseek_r1",
        },
    },
    {
        "name": "Qwen2.5 VL 7B Instruct",
        "defaults": {
            "MODEL_NAME": "Qwen/Qwen2.5-VL-7B-Instruct",
            "MAX_MODEL_LEN": "32768",
            "LIMIT_MM_PER_PROMPT": "image=4,video=1",
        },
    },
    {
        "name": "Qwen3 Embedding 0.6B",
        "defaults": {"MODEL_NAME": "Qwen/Qwen3-Embedding-0.6B", "RUNNER": "pooling"},
    },
)
"""Name, and the variables that differ from the form's own."""
