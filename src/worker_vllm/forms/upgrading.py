"""`docs/upgrading.md`: from runpod/worker-v1-vllm to this one, and what each old variable does."""

from __future__ import annotations

from collections.abc import Iterator

from worker_vllm import env_names, settings
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.configuration.translations import SPECULATIVE
from worker_vllm.forms import markdown
from worker_vllm.forms.markdown import code

_PAGE = """\
# Upgrading from runpod/worker-v1-vllm

<!-- Written by `worker-vllm settings --docs`; edit the code it comes from, not this file. -->

Put this image's name in the place of the old one; variables, clients and jobs stay as they are. Before that,
`worker-vllm settings` shows without a GPU what a template's variables come to and which have no effect:

```sh
docker run --rm --env-file old-template.env --entrypoint worker-vllm YOUR_NAME/worker-vllm:{worker} settings
```

A new release replaces idle workers at once and busy ones after their jobs. To compare first, make a second
endpoint with the same template and the new image.

## What is different

{differences}

Build arguments are the old ones: `MODEL_NAME`, `MODEL_REVISION`, `TOKENIZER_NAME`, `TOKENIZER_REVISION`,
`QUANTIZATION`, `BASE_PATH`, `VLLM_VERSION`, and the secret `HF_TOKEN`. An image with a baked model has to be
built again; the model then lies in `/models` and not under `BASE_PATH`, where a volume would hide it.

## Old variables

Variables that are not in this table mean what they meant: every argument of vLLM {version} under its own name
(docs/configuration.md), and what vLLM reads itself. A variable that has no effect is named in the log at each
start.

{variables}
"""

_DIFFERENCES = (
    (
        "answers of native jobs",
        "a list of batches (in-process images); vLLM's own JSON (proxy images)",
        "the list of batches",
    ),
    (
        "`max_tokens` left out",
        "100 (in-process); 16, or the whole context (proxy)",
        "`DEFAULT_MAX_TOKENS`, which is 100",
    ),
    ("an unknown field in a job", "ignored", "refused by name, with the nearest right one"),
    (
        "errors",
        "text, a dictionary, or an answer that looks like success",
        "FAILED, with OpenAI's error object as JSON text ([jobs.md](jobs.md))",
    ),
    (
        "the size of streamed chunks",
        "grows from 1 to 50 tokens (in-process); whatever was read at once (proxy)",
        "what was generated while the last one was delivered, unless batch sizes are set",
    ),
    ("`MAX_CONCURRENCY` left out", "30; 300 by the old form", "as many as the engine can run together"),
    (
        "several GPUs",
        "all of them, whatever was asked for (in-process); one (proxy)",
        "as many as divide the model's attention heads, or `TENSOR_PARALLEL_SIZE`",
    ),
    (
        "a value that cannot work",
        "a warning and the default, or a traceback after minutes",
        "the start ends with exit code 2 and every problem in one message",
    ),
    (
        "a dead engine",
        "an error for every job, without end",
        "the worker leaves with exit code 4, and another takes its place",
    ),
    (
        "the name of a baked model",
        "its path in the image",
        "its repository's; the path works too",
    ),
    (
        "the template's start command",
        "`bash start.sh` and the like",
        "ignored; the image's entry point counts",
    ),
)
"""What changes without a variable: subject, before, now."""

TRANSLATED = {
    "DISABLE_LOG_REQUESTS": "the opposite of `ENABLE_LOG_REQUESTS`",
    "DISABLE_MM_PREPROCESSOR_CACHE": "`MM_PROCESSOR_CACHE_GB=0`",
    "GUIDED_DECODING_BACKEND": "`backend` in `STRUCTURED_OUTPUTS_CONFIG`; `outlines`, which forms sent for "
    "everybody, counts as not chosen",
    "ROPE_SCALING": "`rope_parameters` in `HF_OVERRIDES`",
    "ROPE_THETA": "`rope_theta` among the `rope_parameters` in `HF_OVERRIDES`",
    "TASK": "`RUNNER` and `CONVERT`",
    "VLLM_STARTUP_TIMEOUT": "`VLLM_ENGINE_READY_TIMEOUT_S`",
    "WORKER_USE_RAY": "`DISTRIBUTED_EXECUTOR_BACKEND=ray`",
} | {name: f"`{key}` in `SPECULATIVE_CONFIG`" for name, (key, _) in SPECULATIVE.items()}
"""What a variable that is still translated becomes."""


def upgrading(table: ArgumentTable, worker_version: str) -> str:
    """The whole page, as Markdown."""
    rows = sorted({variable: (code(variable), today) for variable, today in variables(table)}.items())
    return _PAGE.format(
        version=table.version,
        worker=worker_version,
        differences=markdown.table(("", "Before", "Now"), _DIFFERENCES),
        variables=markdown.table(("Variable", "Today"), (row for _, row in rows)),
    )


def variables(table: ArgumentTable) -> Iterator[tuple[str, str]]:
    """Each old variable, with its value where only that is meant, and what it does today."""
    known = {argument.variable for argument in table.arguments}
    for names in (*env_names.ALIASES.values(), *settings.NAMES.values()):
        for other in names[1:]:
            yield other, f"the same as {code(names[0])}"
    for name, becomes in TRANSLATED.items():
        if name not in known:
            yield name, f"becomes {becomes}"
    for name, instead in env_names.REMOVED.items():
        if name not in known:
            yield name, f"no effect; {instead}"
    for name in env_names.FORM_NOISE:
        yield name, "no effect; today's vLLM has no such thing"
    for name, (same, harm) in env_names.FORM_DEFAULTS.items():
        value = str(same[0]).lower() if isinstance(same[0], bool) else str(same[0])
        meant = code(f"VLLM_ARG_{name.upper()}={value}")
        yield (
            f"{name.upper()}={value}",
            f"not chosen: forms sent it for everybody, and {harm}; {meant} counts",
        )
    for name, number in settings.NOT_CHOSEN.items():
        yield f"{settings.names(name)[0]}={number:g}", "not chosen: forms sent it for everybody"
