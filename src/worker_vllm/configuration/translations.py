"""Old settings in today's terms: each function turns one family of variables into arguments.

Nothing here wins over an argument that somebody set directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from worker_vllm import values
from worker_vllm.configuration import model_config
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.configuration.given import Given
from worker_vllm.configuration.report import Report

TASKS: dict[str, tuple[str, str | None]] = {
    "generate": ("generate", None),
    "transcription": ("generate", None),
    "draft": ("draft", None),
    "embed": ("pooling", "embed"),
    "embedding": ("pooling", "embed"),
    "classify": ("pooling", "classify"),
    "score": ("pooling", "classify"),
    "reward": ("pooling", "reward"),
    "pooling": ("pooling", None),
}
"""What TASK meant: the runner and the conversion that vLLM asks for today."""

SPECULATIVE: dict[str, tuple[str, Callable[[object], Any]]] = {
    "SPECULATIVE_METHOD": ("method", lambda raw: str(raw).strip()),
    "SPECULATIVE_MODEL": ("model", lambda raw: str(raw).strip()),
    "NUM_SPECULATIVE_TOKENS": ("num_speculative_tokens", values.read_int),
    "NGRAM_PROMPT_LOOKUP_MAX": ("prompt_lookup_max", values.read_int),
    "NGRAM_PROMPT_LOOKUP_MIN": ("prompt_lookup_min", values.read_int),
    "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": ("draft_tensor_parallel_size", values.read_int),
    "SPECULATIVE_MAX_MODEL_LEN": ("max_model_len", values.read_int),
    "SPECULATIVE_QUANTIZATION": ("quantization", lambda raw: str(raw).strip()),
    "SPECULATIVE_MODEL_REVISION": ("revision", lambda raw: str(raw).strip()),
    "SPECULATIVE_ENFORCE_EAGER": ("enforce_eager", values.read_bool),
}
"""The old variables of speculative decoding: the key of SPECULATIVE_CONFIG that each is, and how it is
read."""

# a method that is part of a drafter's name says what kind of drafter it is
_METHODS_BY_NAME = ("eagle3", "eagle", "medusa")


class Translator:
    """Adds to `given` what old variables mean.

    Args:
        environ: where the old variables are.
        table: the installed vLLM's arguments.
        given: what is known by argument; added to.
        read_model_config: reads the model's config.json, where an old variable changes a part of it.
        report: is told what was translated, and what could not be.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        table: ArgumentTable,
        given: dict[str, Given],
        read_model_config: model_config.Reader,
        report: Report,
    ) -> None:
        self._environ = {name: text for name, text in environ.items() if not values.is_unset(text)}
        self._table = table
        self._given = given
        self._read_model_config = read_model_config
        self._report = report

    def translate(self) -> None:
        """Everything this class knows."""
        self._task()
        self._ray()
        self._log_requests()
        self._preprocessor_cache()
        self._guided_decoding()
        self._rope()
        self._speculative()
        self._slow_tokenizer()
        self._adapters()

    def _task(self) -> None:
        task = self._environ.get("TASK", "auto").strip().lower()
        if task == "auto" or "task" in self._table.by_name:
            return
        if task not in TASKS:
            self._report.bad_value("TASK", task, f"expected one of {', '.join(TASKS)}")
            return
        runner, convert = TASKS[task]
        self._set("runner", runner, "TASK")
        if convert and convert in self._table.by_name["convert"].choices:
            self._set("convert", convert, "TASK")

    def _ray(self) -> None:
        if self._flag("WORKER_USE_RAY"):
            self._set("distributed_executor_backend", "ray", "WORKER_USE_RAY", meant=True)

    def _slow_tokenizer(self) -> None:
        mode = self._given.get("tokenizer_mode")
        known = self._table.registries.get("tokenizer_mode", ())
        if mode is not None and str(mode.raw).strip().lower() == "slow" and "slow" not in known:
            self._report.warn(
                f"{mode.variable}=slow has no effect: vLLM has fast tokenizers alone since 0.32"
            )
            del self._given["tokenizer_mode"]

    def _adapters(self) -> None:
        switch = self._given.get("enable_lora")
        if (
            "lora_modules" not in self._given
            or switch is None
            or switch.source != "environment"
            or switch.meant
        ):
            return
        if str(switch.raw).strip().lower() in values.FALSE_WORDS:
            # what the forms send for everybody would refuse the adapters that somebody named
            self._report.warn(f"{switch.variable}={switch.raw} is not used, because LORA_MODULES is set")
            del self._given["enable_lora"]

    def _log_requests(self) -> None:
        # the forms sent true for everyone, which is what vLLM does today when nobody asks for anything
        if self._flag("DISABLE_LOG_REQUESTS") is False and "DISABLE_LOG_REQUESTS" in self._environ:
            self._set("enable_log_requests", True, "DISABLE_LOG_REQUESTS")

    def _preprocessor_cache(self) -> None:
        if self._flag("DISABLE_MM_PREPROCESSOR_CACHE"):
            self._set("mm_processor_cache_gb", 0, "DISABLE_MM_PREPROCESSOR_CACHE")

    def _guided_decoding(self) -> None:
        backend = self._environ.get("GUIDED_DECODING_BACKEND", "").strip()
        # sent by the old forms for everybody, and without effect for years
        if backend and backend != "outlines":
            self._set(
                "structured_outputs_config", {"backend": backend.split(":")[0]}, "GUIDED_DECODING_BACKEND"
            )

    def _rope(self) -> None:
        asked: dict[str, Any] = {}
        variable = "ROPE_SCALING"
        try:
            if variable in self._environ:
                asked |= model_config.renamed(values.read_mapping(self._environ[variable]))
            if "ROPE_THETA" in self._environ:
                variable = "ROPE_THETA"
                theta = values.read_float(self._environ[variable])
                # 0 is what forms send for "the model's own"
                asked |= {"rope_theta": theta} if theta else {}
        except ValueError as error:
            self._report.bad_value(variable, self._environ[variable], error)
            return
        if asked:
            self._override_rope(asked, variable)

    def _override_rope(self, asked: dict[str, Any], variable: str) -> None:
        # an override replaces the model's parameters whole, so what nobody asked about is put back
        model, revision = self._given.get("model"), self._given.get("revision")
        config = (
            self._read_model_config(str(model.raw), str(revision.raw) if revision else None)
            if model
            else None
        )
        parameters = {"rope_type": "default"} | model_config.rope_parameters(config or {}) | asked
        if "rope_theta" not in parameters:
            self._report.warn(f"{variable}: the model's rope_theta is not known yet; set ROPE_THETA to it")
        overrides = self._given.get("hf_overrides")
        if overrides is None:
            self._set("hf_overrides", {"rope_parameters": parameters}, variable)
            return
        try:
            merged = values.read_mapping(overrides.raw)
        except ValueError:
            return  # the fault in HF_OVERRIDES is told where it is read
        merged.setdefault("rope_parameters", parameters)
        self._given["hf_overrides"] = Given(merged, overrides.source, overrides.variable, overrides.meant)

    def _speculative(self) -> None:
        used = [variable for variable in SPECULATIVE if variable in self._environ]
        if not used or "speculative_config" in self._given:
            for variable in used:
                self._report.warn(f"{variable} is not used, because SPECULATIVE_CONFIG is set too")
            return
        config: dict[str, Any] = {}
        for variable in used:
            key, read = SPECULATIVE[variable]
            try:
                value = read(self._environ[variable])
            except ValueError as error:
                self._report.bad_value(variable, self._environ[variable], error)
                continue
            # 0 and false are what forms send for "not this"
            if value:
                config[key] = value
        known = self._table.registries.get("speculative_config", ())
        for key in [key for key in config if known and key not in known]:
            self._report.warn(
                f"vLLM {self._table.version} has no {key} in SPECULATIVE_CONFIG; it is left out"
            )
            del config[key]
        if not config.keys() & {"method", "model", "prompt_lookup_max"}:
            if config:
                self._report.warn(f"{used[0]} has no effect without SPECULATIVE_MODEL or SPECULATIVE_METHOD")
            return
        config.setdefault("method", _guess_method(config))
        self._set("speculative_config", config, used[0])

    def _flag(self, variable: str) -> bool | None:
        if variable not in self._environ or variable.lower() in self._table.by_name:
            return None
        try:
            return values.read_bool(self._environ[variable])
        except ValueError as error:
            self._report.bad_value(variable, self._environ[variable], error)
            return None

    def _set(self, name: str, value: Any, variable: str, *, meant: bool = False) -> None:
        direct = self._given.get(name)
        if direct is not None:
            self._report.warn(f"{variable} is not used, because {direct.variable} is set too")
        elif name in self._table.by_name:
            self._given[name] = Given(value, "environment", variable, meant)


def _guess_method(config: Mapping[str, Any]) -> str:
    if "model" not in config:
        return "ngram"
    name = str(config["model"]).lower()
    return next((method for method in _METHODS_BY_NAME if method in name), "draft_model")
