"""Findings about the configuration: what contradicts the model, or misses what it has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from worker_vllm.doctor import families
from worker_vllm.doctor.case import Case
from worker_vllm.doctor.finding import Finding
from worker_vllm.doctor.shape import rope_parameters
from worker_vllm.models import chat_template, describe
from worker_vllm.models.cache import REPOSITORY
from worker_vllm.models.facts import ModelFacts
from worker_vllm.models.support import runs_in_transformers

_SAME_METHOD = {
    "awq_marlin": "awq",
    "auto_awq": "awq",
    "gptq_marlin": "gptq",
    "auto_gptq": "gptq",
    "moe_wna16": "",
    "gpt_oss_mxfp4": "mxfp4",
    "humming": "",
}


def findings(case: Case) -> Iterator[Finding]:
    """What the configuration says against the case."""
    yield from _files(case)
    yield from _backend(case)
    yield from _length(case)
    yield from _quantization(case)
    yield from _adapters(case)
    yield from _template(case)
    yield from _parser(
        case,
        "tool_call_parser",
        "tool-parser",
        families.tool_parsers,
        "a call of a tool stays text in `content`",
    )
    yield from _parser(
        case,
        "reasoning_parser",
        "reasoning-parser",
        families.reasoning_parsers,
        "its thoughts stay in `content`, in front of the answer",
    )


def _files(case: Case) -> Iterator[Finding]:
    facts = case.facts
    if facts.source == "remote":
        yield Finding(
            "note",
            "model-not-found",
            f"{facts.name} is read by vLLM itself as it starts, so nothing is said about it",
            "its files are looked at on this machine and on the hub alone",
        )
    if not facts.config and facts.files and facts.weights.format != "gguf":
        yield Finding(
            "warning",
            "model-not-found",
            f"{facts.name} has no config.json that could be read",
            "its size and its needs are not known, so nothing is said about memory",
            "look at MODEL_NAME and its revision",
        )
    if facts.weights.missing:
        missing = facts.weights.missing
        yield Finding(
            "warning",
            "weights-incomplete",
            f"{len(missing)} of the weight files that the index names are missing, {missing[0]} for one",
            "a download that was broken off, or a copy that was not whole",
            "fetch the model again",
        )


def _backend(case: Case) -> Iterator[Finding]:
    overrides = case.value("hf_overrides")
    name = runs_in_transformers(case.facts, overrides if isinstance(overrides, dict) else None)
    if name is not None:
        yield Finding(
            "note",
            "transformers-backend",
            f"vLLM has no {name} of its own and runs transformers' class, if that allows it",
            "the class is not in vLLM's registry",
            "expect it to be slower; a model whose class vLLM has needs no such detour",
        )


def _length(case: Case) -> Iterator[Finding]:
    given, own = case.value("max_model_len"), case.shape.max_length
    if not case.chosen("max_model_len") or not isinstance(given, int) or not own or given <= own:
        return
    stated = case.shape.text.get("model_max_length")
    if isinstance(stated, int) and given <= stated:
        return
    allowed = case.is_on("VLLM_ALLOW_LONG_MAX_MODEL_LEN")
    variable = case.variable("max_model_len")
    if allowed:
        yield Finding(
            "warning",
            "max-model-len",
            f"{variable}={given} is above the {own:,} positions that the model knows",
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN lets it pass; beyond them the text goes astray, or a kernel fails",
            f"set MAX_MODEL_LEN={own}, unless you know that the model was trained for more",
        )
        return
    rope = rope_parameters(case.shape.text)
    scaled = bool(rope)
    # vLLM's versions differ in whether yarn's factor stretches the limit
    yarn = any("yarn" in str(r.get("rope_type") or r.get("type")) for r in rope)
    yield Finding(
        "warning" if case.value("hf_overrides") or yarn else "fatal",
        "max-model-len",
        f"{variable}={given} is above the {own:,} positions that the model knows: vLLM refuses to start",
        "config.json states them",
        f"set MAX_MODEL_LEN={own}"
        + (
            ', or scale its rotary embedding with HF_OVERRIDES={"rope_parameters": {"rope_type": "yarn", …}} '
            "as its model card says"
            if scaled
            else ""
        )
        + "; VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 only silences the check",
    )


def _quantization(case: Case) -> Iterator[Finding]:
    given, written = case.value("quantization"), case.facts.quantization
    if not given or not written or not case.chosen("quantization"):
        return
    asked = _SAME_METHOD.get(str(given), str(given))
    if asked and asked != written and not written.startswith(asked) and not asked.startswith(written):
        yield Finding(
            "warning",
            "quantization-differs",
            f"{case.variable('quantization')}={given}, and the checkpoint is quantized with {written}",
            "vLLM takes the method from the checkpoint, and refuses one that contradicts it",
            "leave QUANTIZATION out",
        )


def _adapters(case: Case) -> Iterator[Finding]:
    highest = case.value("max_lora_rank")
    for adapter in case.facts.adapters:
        if adapter.problem:
            yield Finding(
                "fatal",
                "adapter",
                f"adapter {adapter.name}: {adapter.problem}",
                "the adapters of LORA_MODULES are loaded at the start, and one that fails ends it",
                "mend its entry in LORA_MODULES, or remove it",
            )
        if adapter.base and not _is_same_model(adapter.base, case.facts):
            yield Finding(
                "note",
                "adapter-base",
                f"adapter {adapter.name} was trained on {adapter.base}, and the model is "
                f"{case.facts.repository or case.facts.name}",
                "its adapter_config.json says so; where the two differ in more than a name, vLLM refuses it "
                "or its answers are poor",
                "look whether they are the same model",
            )
        if adapter.rank and isinstance(highest, int) and adapter.rank > highest:
            yield Finding(
                "fatal" if not adapter.problem else "warning",
                "adapter-rank",
                f"adapter {adapter.name} has rank {adapter.rank}, and MAX_LORA_RANK is {highest}",
                "memory is set aside for the largest rank that may come, and vLLM refuses a larger one",
                f"set MAX_LORA_RANK={_rank_above(adapter.rank)}",
            )


def _is_same_model(base: str, facts: ModelFacts) -> bool:
    """Whether a base's name is the model's, or one begins with the other (-AWQ); a folder's tells nothing."""
    if facts.source == "path" or not REPOSITORY.fullmatch(base):
        return True
    names = sorted(
        (
            re.sub(r"[^a-z0-9]", "", name.split("/")[-1].lower())
            for name in (base, facts.repository or facts.name)
        ),
        key=len,
    )
    return names[1].startswith(names[0])


def _rank_above(rank: int) -> int:
    return next((choice for choice in (8, 16, 32, 64, 128, 256, 320, 512) if choice >= rank), rank)


def _generates(case: Case) -> bool:
    pooling = case.value("runner") == "pooling" or case.value("convert") in ("embed", "classify")
    return not pooling and not case.shape.encoder_only and case.shape.family != "whisper"


def _template(case: Case) -> Iterator[Finding]:
    facts = case.facts
    if isinstance(given := case.value("chat_template"), str) and given:
        yield from _given_template(case, given)
        return
    if not _generates(case) or not facts.config or facts.tokenizer:
        return
    # Mistral's own tokenizers, and families whose prompts vLLM writes itself, need none
    own = case.value("tokenizer_mode") not in (None, "auto", "hf") or "tekken.json" in facts.tokenizer_files
    if facts.chat_template is None and not own and "tokenizer_config.json" in facts.tokenizer_files:
        yield Finding(
            "warning",
            "chat-template",
            "the tokenizer has no chat template: messages are refused with 400, and prompts work",
            "a base model, most likely: it continues texts and was not trained to answer",
            "choose the model's -Instruct or -it variant, or set CUSTOM_CHAT_TEMPLATE to a template's path",
        )
    elif facts.chat_template_problem:
        yield Finding(
            "warning",
            "chat-template",
            f"the chat template does not parse: {facts.chat_template_problem}",
            "messages will be refused",
            "set CUSTOM_CHAT_TEMPLATE to a corrected copy",
        )


def _given_template(case: Case, given: str) -> Iterator[Finding]:
    variable, text = case.variable("chat_template"), given
    if not set("{}\n") & set(given):  # as vLLM tells a path from a template
        found = describe.read_small(Path(given))
        if found is None and not given.startswith("/"):
            return  # vLLM has templates of its own, which are called by their file's name
        if found is None:
            elsewhere = case.hardware.asked
            yield Finding(
                "warning" if elsewhere else "fatal",
                "chat-template",
                f"{variable}={given} cannot be read here" + ("" if elsewhere else ": vLLM refuses to start"),
                "it is taken for a path, as there is nothing of a template in it",
                "see that the file is in the image or on the volume",
            )
            return
        text = found
    if problem := chat_template.problem(text):
        yield Finding(
            "warning",
            "chat-template",
            f"{variable} does not parse: {problem}",
            "messages will be refused",
            "correct the template",
        )


def _parser(
    case: Case,
    argument: str,
    code: str,
    fitting: Callable[[str, str | None], tuple[str, ...]],
    without: str,
) -> Iterator[Finding]:
    if not _generates(case):
        return
    names = fitting(case.shape.family, case.facts.chat_template)
    known = case.parsers.get(argument, ())
    names = tuple(name for name in names if not known or name in known)
    given = case.value(argument)
    if not names or (given and str(given) in names):
        return
    switch = "ENABLE_AUTO_TOOL_CHOICE=true and " if argument == "tool_call_parser" else ""
    variable = argument.upper()
    if given:
        yield Finding(
            "warning",
            code,
            f"{case.variable(argument)}={given} reads another format than this model writes",
            f"its chat template and family point to {' or '.join(names[:2])}",
            f"set {variable}={names[0]}, unless the model was trained otherwise",
        )
    else:
        yield Finding(
            "note",
            code,
            f"no {argument.replace('_', ' ')} is set, and without one {without}",
            "its family or its chat template says that it writes them",
            f"set {switch}{variable}={names[0]}",
        )
