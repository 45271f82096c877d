"""`docs/configuration.md`: how the worker is configured, and every setting that is worth offering."""

from __future__ import annotations

from collections.abc import Sequence

from worker_vllm import env_names, values
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.forms import markdown
from worker_vllm.forms.catalog import WORKER_GROUPS
from worker_vllm.forms.entries import REQUIRED, Entry, groups
from worker_vllm.forms.markdown import code, codes

_INTRODUCTION = """\
# Configuration

<!-- Written by `worker-vllm settings --docs`; edit the code it comes from, not this file. -->

The worker is configured by environment variables. `MODEL_NAME` is the only one that must be set.

```sh
worker-vllm settings         # what is in force here, and why
worker-vllm settings --all   # the defaults too
```

Nothing is ignored in silence. A value that cannot work stops the start before any weights load, with exit
code 2 and all problems at once; a name that looks like a setting and is none gets a warning with the nearest
right one.

## Where values come from

From the weakest to the strongest:

1. vLLM's own defaults (this page is for vLLM {version}).
2. The machine's profile. On a CPU: `ENFORCE_EAGER=true` (compiled bfloat16 gives wrong text there) and a KV
   cache of a quarter of the free memory, from 1 to 4 GiB. With several GPUs: `TENSOR_PARALLEL_SIZE` is as
   many of them as divide the model's attention heads.
3. The configuration file: vLLM's own YAML, at `VLLM_CONFIG_FILE` or else `/vllm_config.yaml`. `${{NAME}}` and
   `${{NAME:-default}}` are replaced from the environment. A key that vLLM does not know gets a warning.
4. Environment variables.
5. `VLLM_EXTRA_ARGS`: arguments as on vLLM's command line.

A model baked into the image stands in unless one of these names another model.

## Names

Every argument of the installed vLLM is a variable: its name in upper case with underscores, so
`--max-num-seqs` is `MAX_NUM_SEQS`. The list is read from vLLM itself; `worker-vllm settings --all` shows it
whole. One key of an argument that is an object is `NAME__key`: `COMPILATION_CONFIG__mode=0`. Variables that
vLLM itself reads (`VLLM_LOGGING_LEVEL`, `VLLM_PORT`, …) reach it untouched.

`VLLM_ARG_<NAME>` sets an argument whatever `<NAME>` alone would mean. It is needed for names that other
software uses:

{denied}

## Values

- Booleans: {true_words} or {false_words}, in any case.
- Empty, `None` and `null` mean "not set". `0` means that only where it is not a value: {zeros}.
- Sizes such as `MAX_MODEL_LEN` may be written 8k (8000) or 8K (8192).
- Lists: `a,b` or `["a", "b"]`. Objects: JSON, a Python literal, or `key=value,key=value`.
- `LORA_MODULES`: `name=path` (several with blanks between them), one JSON object, or a JSON list of objects.
  It switches adapters on.
- `LIMIT_MM_PER_PROMPT`: `image=2,video=0` or JSON.

## Secrets

`HF_TOKEN` (or `HUGGING_FACE_HUB_TOKEN`) stays in the environment, where the hub library finds it: it reaches
no command line, log, error or output of `worker-vllm settings`. RunPod's keys, `BUCKET_*` and, unless the
model comes from an object store, `AWS_*` are kept from the engine's processes. `VLLM_API_KEY` is dropped:
RunPod checks keys before a job reaches the worker, and there is no port to guard.
"""

_OLD_NAMES = """\
## Old names and values

Templates made for earlier workers keep working: [upgrading.md](upgrading.md) tells what each old variable
does today. Some values count as not chosen, because the old forms sent them for everybody; `VLLM_ARG_<NAME>`,
`VLLM_EXTRA_ARGS` and the configuration file mean them.
"""


def page(table: ArgumentTable) -> str:
    """The whole page, as Markdown."""
    worker_titles = {group.title for group in WORKER_GROUPS}
    offered = list(groups(table))
    parts = [
        _introduction(table),
        "## Settings of the worker\n",
        *(_section(title, entries) for title, entries in offered if title in worker_titles),
        "## Arguments of vLLM\n",
        *(_section(title, entries) for title, entries in offered if title not in worker_titles),
        _OLD_NAMES,
    ]
    return "\n".join(parts)


def _introduction(table: ArgumentTable) -> str:
    return _INTRODUCTION.format(
        version=table.version,
        denied=markdown.table(
            ("Name", "Why"), ((code(name), why) for name, why in sorted(env_names.DENIED.items()))
        ),
        true_words="/".join(sorted(values.TRUE_WORDS, key=len, reverse=True)),
        false_words="/".join(sorted(values.FALSE_WORDS, key=len, reverse=True)),
        zeros=codes(name.upper() for name in sorted(env_names.ZERO_MEANS_UNSET) if name in table.by_name),
    )


def _section(title: str, entries: Sequence[Entry]) -> str:
    rows = ((code(entry.variable), _values(entry), _default(entry), entry.help) for entry in entries)
    return f"### {title}\n\n{markdown.table(('Variable', 'Values', 'Default', 'What it does'), rows)}\n"


def _values(entry: Entry) -> str:
    if entry.type == "choice":
        return codes(choice for choice in entry.choices if choice)
    return {"text": "text", "number": "number", "boolean": "`true`, `false`"}[entry.type]


def _default(entry: Entry) -> str:
    if entry.own_default in (None, "", [], {}) or entry.variable == REQUIRED:
        return ""
    shown = str(entry.own_default).lower() if isinstance(entry.own_default, bool) else str(entry.own_default)
    return code(shown)
