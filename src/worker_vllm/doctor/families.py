"""Which of vLLM's tool and reasoning parsers reads what a model writes: data, from vLLM's own documentation
(docs/features/tool_calling.md, reasoning_outputs.md) and the parsers' sources."""

from __future__ import annotations

TOOL_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("<function=", ("qwen3_coder", "qwen3_xml", "step3p5", "seed_oss")),
    ("<seed:tool_call>", ("seed_oss",)),
    ("<minimax:tool_call>", ("minimax_m2",)),
    ("<|tool_calls_section_begin|>", ("kimi_k2",)),
    ("<arg_key>", ("glm45", "glm47")),
    ("<｜tool▁calls▁begin｜>", ("deepseek_v3", "deepseek_v31")),
    ("[TOOL_CALLS]", ("mistral",)),
    ("<|START_ACTION|>", ("cohere_command3",)),
    ("<|action_start|>", ("internlm",)),
    ("<|tool_list_start|>", ("lfm2",)),
    ("<start_function_call>", ("functiongemma",)),
    ("<tool_call>", ("hermes", "qwen3_coder", "qwen3_xml", "granite4", "jamba", "hunyuan_a13b")),
    ("<|python_tag|>", ("llama3_json",)),
)
"""What a chat template writes around a tool call, to the parsers that read it, the first the likeliest. The
first mark that is found counts."""

TOOL_FAMILIES: dict[str, tuple[str, ...]] = {
    "gpt_oss": ("openai",),
    "llama4": ("llama4_pythonic", "llama4_json"),
    "llama4_text": ("llama4_pythonic", "llama4_json"),
    "deepseek_v32": ("deepseek_v32",),
    "deepseek_v4": ("deepseek_v4",),
    "jamba": ("jamba",),
    "granite": ("granite",),
    "granitemoehybrid": ("granite4", "hermes"),
    "gemma4": ("gemma4",),
    "gemma4_text": ("gemma4",),
    "olmo3": ("olmo3",),
    "lfm2": ("lfm2",),
    "lfm2_moe": ("lfm2",),
    "minimax_m2": ("minimax_m2",),
    "kimi_k2": ("kimi_k2",),
    "glm4_moe": ("glm45", "glm47"),
    "apertus": ("apertus",),
    "longcat_flash": ("longcat",),
}
"""model_type to its tool parsers, where the family alone decides."""

REASONING_FAMILIES: dict[str, tuple[str, ...]] = {
    "gpt_oss": ("openai_gptoss",),
    "qwen3": ("qwen3", "deepseek_r1"),
    "qwen3_moe": ("qwen3", "deepseek_r1"),
    "qwen3_next": ("qwen3", "deepseek_r1"),
    "qwen3_5_text": ("qwen3",),
    "qwen3_5_moe_text": ("qwen3",),
    "qwen3_vl_text": ("qwen3", "deepseek_r1"),
    "qwen3_vl_moe_text": ("qwen3", "deepseek_r1"),
    "deepseek_v3": ("deepseek_r1", "deepseek_v3"),
    "deepseek_v32": ("deepseek_v3",),
    "glm4_moe": ("glm45", "glm47"),
    "granite": ("granite",),
    "nemotron_h": ("nemotron_v3", "deepseek_r1"),
    "minimax_m2": ("minimax_m2", "minimax_m2_append_think"),
    "gemma4": ("gemma4",),
    "gemma4_text": ("gemma4",),
    "olmo3": ("olmo3",),
    "seed_oss": ("seed_oss",),
    "mistral": ("mistral",),
    "mistral3": ("mistral",),
    "kimi_k2": ("kimi_k2",),
}
"""model_type to its reasoning parsers, for models that think; whether one does is told by its template."""

REASONING_MARKS = ("<think>", "[THINK]", "<seed:think>", "<|channel|>analysis", "reasoning_content")
"""What the chat template of a model that thinks contains."""

DEFAULT_REASONING = ("deepseek_r1", "qwen3", "deepseek_v3", "glm45", "granite", "hunyuan_a13b", "ernie45")
"""Parsers that read <think>, for families that are not listed: models distilled from DeepSeek R1, mostly."""


def tool_parsers(family: str, template: str | None) -> tuple[str, ...]:
    """The tool parsers that fit, the likeliest first; empty where the model is not known to call tools."""
    if family in TOOL_FAMILIES:
        return TOOL_FAMILIES[family]
    if not template or "tools" not in template:
        return ()
    return next((parsers for mark, parsers in TOOL_MARKS if mark in template), ())


def reasoning_parsers(family: str, template: str | None) -> tuple[str, ...]:
    """The reasoning parsers that fit, the likeliest first; empty where the model is not known to think."""
    if family == "gpt_oss":
        return REASONING_FAMILIES[family]
    if not template or not any(mark in template for mark in REASONING_MARKS):
        return ()
    found = REASONING_FAMILIES.get(family, ())
    if found:
        return found
    return DEFAULT_REASONING if "<think>" in template else ()
