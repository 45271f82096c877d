"""What the doctor says: findings, each with a level, a cause and a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["fatal", "warning", "note"]

LEVELS: tuple[Level, ...] = ("fatal", "warning", "note")
"""The gravest first. Fatal: vLLM will refuse or fail, for certain. Warning: it works, though not as meant, or
a figure that is an estimate says that it will not. Note: worth knowing."""

CODES: Mapping[str, str] = {
    "model-not-found": "the model's configuration cannot be read, so nothing is known of its size",
    "model-unsupported": "vLLM cannot run the model, or only with its own code (TRUST_REMOTE_CODE)",
    "transformers-backend": "vLLM runs the model through transformers' own class",
    "tokenizer": "vLLM cannot make the tokenizer that the settings ask for",
    "speculator": "the drafter that SPECULATIVE_CONFIG names cannot be had",
    "weights-incomplete": "weight files that the index names are missing",
    "weights-too-large": "the weights do not fit the share of the memory that vLLM may use",
    "context-does-not-fit": "the KV cache does not hold one request of the full context length",
    "few-requests": "only one or two requests of the full length fit at once",
    "gpu-memory-in-use": "something else already uses memory of the GPU",
    "host-memory": "weights and KV cache do not fit the host's memory, or the size given is none (CPU)",
    "pool": "the smallest of RunPod's GPU choices that would do",
    "parallel-heads": "tensor parallel does not divide the attention heads",
    "parallel-kv-heads": "tensor parallel and the KV heads do not divide each other",
    "parallel-vocabulary": "tensor parallel does not divide the padded vocabulary",
    "parallel-quantization": "tensor parallel cuts a layer inside a block of the quantization",
    "gpus-missing": "more GPUs are asked for than there are",
    "gpus-idle": "more GPUs than are used",
    "gpus-differ": "GPUs of several kinds",
    "pipeline-without-peer-access": "pipeline parallel on GPUs of capability 7.x without NVLink",
    "pipeline-on-one-node": "pipeline parallel where tensor parallel would do",
    "ray-on-one-node": "Ray where all GPUs are in one machine",
    "ray-timeout": "RAY_CGRAPH_get_timeout without pipeline parallel",
    "shared-memory": "too little /dev/shm for several GPUs",
    "driver-too-old": "the driver's CUDA is older than the one that torch is built for",
    "cuda-without-capability": "the CUDA of this build has no code for the GPU",
    "bfloat16": "the GPU has no bfloat16",
    "float16-unstable": "the model's family cannot run in float16",
    "quantization-capability": "the GPU cannot run the quantization",
    "quantization-emulated": "the quantization saves memory only: the GPU has no arithmetic for it",
    "quantization-differs": "QUANTIZATION contradicts the checkpoint",
    "kv-cache-dtype": "the GPU does not suit the KV cache's data type",
    "attention-backend": "the chosen attention backend does not run on the GPU",
    "attention-slow": "the fast attention kernels do not run on the GPU",
    "mla-capability": "the GPU has no fast kernels for multi-head latent attention",
    "max-model-len": "max_model_len is above the model's own",
    "tool-parser": "the tool parser is missing or of another family",
    "reasoning-parser": "the reasoning parser is missing or of another family",
    "chat-template": "no chat template, or one that does not parse",
    "adapter-rank": "a LoRA adapter's rank is above MAX_LORA_RANK",
    "adapter-base": "a LoRA adapter was trained on another model",
    "adapter": "a LoRA adapter cannot be used",
    "versions": "installed packages that do not go together",
}
"""Every code with what it stands for; docs/doctor.md is tested against it."""


OF_THE_CONFIGURATION = frozenset(
    {"model-unsupported", "parallel-heads", "max-model-len", "adapter-rank", "adapter", "chat-template"}
)
"""Codes of what no other machine mends."""


@dataclass(frozen=True)
class Finding:
    """One piece of advice.

    Attributes:
        level: see `LEVELS`.
        code: one of `CODES`; stable, for programs.
        message: what is the matter, in one sentence.
        cause: why that is so, or where the figure comes from; may be empty.
        remedy: what to do; may be empty where nothing needs doing.
    """

    level: Level
    code: str
    message: str
    cause: str = ""
    remedy: str = ""

    def in_one_line(self) -> str:
        """All of it as a line for the log."""
        parts = [f"{self.code}: {self.message}", self.cause, self.remedy]
        return " ".join(f"{part.rstrip('.')}." for part in parts if part)

    def as_data(self) -> dict[str, str]:
        """The finding as plain data."""
        return asdict(self)


def gravest_first(findings: list[Finding]) -> list[Finding]:
    """`findings` by level, otherwise in their order; none twice."""
    unique = list(dict.fromkeys(findings))
    return sorted(unique, key=lambda finding: LEVELS.index(finding.level))
