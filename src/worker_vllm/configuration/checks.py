"""Mistakes that vLLM's parser lets through: names looked up later, pairs that exclude each other, retired
methods."""

from __future__ import annotations

from collections.abc import Mapping

from worker_vllm import values
from worker_vllm.configuration.arguments import Argument, ArgumentTable, unknown_word
from worker_vllm.configuration.report import Report
from worker_vllm.env_names import NO_PORT
from worker_vllm.settings import Effective

RETIRED: dict[tuple[str, str], str] = {
    ("quantization", "squeezellm"): "vLLM dropped it; use an AWQ, GPTQ or FP8 checkpoint",
    (
        "quantization",
        "bitsandbytes",
    ): "vLLM 0.28 dropped bitsandbytes; use a quantized checkpoint (AWQ, GPTQ, FP8) "
    "or QUANTIZATION=fp8, which quantizes as it loads",
    (
        "load_format",
        "bitsandbytes",
    ): "vLLM 0.28 dropped bitsandbytes; use a quantized checkpoint (AWQ, GPTQ, FP8) "
    "or QUANTIZATION=fp8, which quantizes as it loads",
    ("speculative_config", "medusa"): "vLLM 0.33 dropped it; use eagle3, draft_model or ngram",
    ("speculative_config", "mlp_speculator"): "vLLM 0.33 dropped it; use eagle3, draft_model or ngram",
}
"""Names that vLLM once knew: (argument, name) to what to do instead."""

_PLUGINS = {"tool_call_parser": "tool_parser_plugin", "reasoning_parser": "reasoning_parser_plugin"}


def check(chosen: Mapping[str, Effective], table: ArgumentTable, report: Report) -> None:
    """Tell `report` what will not work in `chosen`, and what will have no effect."""
    for name, known in table.registries.items():
        if name in chosen and name != "speculative_config":
            _check_name(name, chosen, known, report)
    for argument in table.arguments:
        if argument.suggestions and argument.name in chosen and argument.name not in table.registries:
            _check_suggestion(chosen[argument.name], argument, report)
    _check_speculation(chosen, table, report)
    _check_pairs(chosen, report)
    no_effect = [chosen[name].variable or name for name in NO_PORT if name in chosen]
    if no_effect:
        report.warn(f"without effect, as the worker opens no HTTP port: {', '.join(no_effect)}")


def _check_name(name: str, chosen: Mapping[str, Effective], known: tuple[str, ...], report: Report) -> None:
    value = str(chosen[name].value)
    plugin = chosen.get(_PLUGINS.get(name, ""))
    # a dotted name is a class to import, and a plugin registers names of its own
    if value.lower() in map(str.lower, known) or "." in value or ":" in value or plugin:
        return
    advice = RETIRED.get((name, value)) or unknown_word(value, known)
    report.bad_value(chosen[name].variable or name, value, advice)


def _check_suggestion(effective: Effective, argument: Argument, report: Report) -> None:
    value = str(effective.value)
    if value not in argument.suggestions and "." not in value and ":" not in value:
        report.warn(
            f"{effective.variable}={values.shown(value)}: {unknown_word(value, argument.suggestions)}"
        )


def _check_speculation(chosen: Mapping[str, Effective], table: ArgumentTable, report: Report) -> None:
    speculation = chosen.get("speculative_config")
    if speculation is None or not isinstance(speculation.value, dict):
        return
    variable = speculation.variable or "SPECULATIVE_CONFIG"
    known = table.registries.get("speculative_config", ())
    for key in speculation.value:
        if known and key not in known:
            report.bad_value(variable, key, f"no such key: {unknown_word(key, known)}")
    method = speculation.value.get("method")
    methods = table.registries.get("spec_method", ())
    if isinstance(method, str) and methods and method not in methods:
        advice = RETIRED.get(("speculative_config", method)) or unknown_word(method, methods)
        report.bad_value(variable, method, f"method: {advice}")


def _check_pairs(chosen: Mapping[str, Effective], report: Report) -> None:
    """What vLLM's own validation refuses later, in terms of variables."""

    def on(name: str) -> bool:
        return name in chosen and bool(chosen[name].value)

    def variable(name: str) -> str:
        return chosen[name].variable or name.upper()

    if on("enable_auto_tool_choice") and not on("tool_call_parser"):
        report.problem(f"{variable('enable_auto_tool_choice')} needs TOOL_CALL_PARSER")
    if on("enable_log_outputs") and not on("enable_log_requests"):
        report.problem(f"{variable('enable_log_outputs')} needs ENABLE_LOG_REQUESTS=true")
    if on("enable_per_request_metrics") and on("disable_log_stats"):
        statistics = variable("disable_log_stats")
        report.problem(f"{variable('enable_per_request_metrics')} needs statistics: remove {statistics}")
    if on("lora_modules") and not on("enable_lora"):
        report.problem(
            f"{variable('lora_modules')} needs adapters switched on: remove {variable('enable_lora')}"
        )
    if on("tool_call_parser") and not on("enable_auto_tool_choice"):
        report.warn(
            f"{variable('tool_call_parser')} parses only named tools without ENABLE_AUTO_TOOL_CHOICE=true"
        )
    if "max_num_batched_tokens" in chosen and "max_num_seqs" in chosen:
        tokens, sequences = chosen["max_num_batched_tokens"].value, chosen["max_num_seqs"].value
        if tokens < sequences:
            report.bad_value(
                variable("max_num_batched_tokens"),
                tokens,
                f"expected at least {variable('max_num_seqs')}={sequences}",
            )
