"""Tables of what a job may hold: names, aliases, relics, kinds of value, and limits. Data only.

The limits keep one client's job from stalling the others on the same engine. They bound what vLLM itself
would still accept; a value that a model or setting forbids (max_logprobs, context length, vocabulary) is
refused by the engine.
"""

from __future__ import annotations

from typing import NamedTuple

# --- limits ---

MAX_JSON_DEPTH = 100
"""Nesting of any value in the input. Every JSON reader and writer on the way recurses; real inputs stay below
20."""
MAX_JSON_VALUES = 50_000
"""Texts, numbers, lists and objects in one job, a list of token ids counting once: vLLM's request models read
them while all jobs wait."""
LARGE_JOB = 100_000
"""Characters and token ids from which a job is read in a thread of its own."""
MAX_INTEGER = 2**63 - 1
"""The engine's transport (MessagePack) carries 64-bit integers."""
MAX_INTEGER_BITS = 1000
"""Integers in values that are only passed on: still convertible to a float, unlike 10**400."""
MAX_TOKEN_COUNT = 2**31 - 1
"""max_tokens, min_tokens and the like: the engine counts in 32 bits."""
MAX_TOKEN_ID = 2**31 - 1
"""Token ids are 32 bits wide in the engine's tensors; the model's own vocabulary is checked by the engine."""
MAX_N = 128
"""Answers per prompt: each is a sequence of its own in the engine. OpenAI's own limit."""
MAX_PROMPTS = 1024
"""Prompts in one job: vLLM's own limit on its completions route."""
MAX_SEQUENCES = 1024
"""Prompts times answers: what one job can put into the engine at once."""
MAX_BEAM_WIDTH = 32
"""Beams: beam search starts this many engine requests for every single token."""
MAX_MESSAGES = 4096
"""Messages in one conversation: the template loops over them, and vLLM's reading of them blocks the loop."""
MAX_MEDIA_PARTS = 256
"""Images, videos and sounds in one job: each may be fetched from somewhere."""
MAX_TOOLS = 512
"""Tools in one job."""
MAX_TOOLS_CHARACTERS = 524_288
"""All of a job's tools as text: they are part of its prompt."""
MAX_INPUTS = 2048
"""Texts in one embedding, score or rerank request: OpenAI's own limit for embeddings."""
MAX_LOGPROBS = 1000
"""Alternatives per token: each is decoded to text and sent, so 1,000 already make an answer a thousand times
larger."""
MAX_LOGPROB_TOKEN_IDS = 128
"""vLLM's own limit."""
MAX_STOP_STRINGS = 64
"""Each is searched for after every token."""
MAX_STOP_CHARACTERS = 1024
"""A stream holds back as many characters as the longest stop string has."""
MAX_STOP_TOKEN_IDS = 1024
"""Compared after every token."""
MAX_BAD_WORDS = 128
"""vLLM's own limit; each is compared at every step."""
MAX_LOGIT_BIAS = 10_000
"""Entries; copied to the GPU at every step."""
MAX_ALLOWED_TOKEN_IDS = 300_000
"""The largest vocabularies have about 260,000 tokens."""
MAX_SCHEMA_CHARACTERS = 131_072
"""A JSON schema or structural tag as text. It is compiled on the CPU, in time that grows faster than its
size."""
MAX_SCHEMA_DEPTH = 64
"""Nesting of a JSON schema: vLLM's own limit; compiling grows steeply with it."""
MAX_REGEX_CHARACTERS = 8192
"""A regular expression is compiled to an automaton that can be exponentially larger."""
MAX_GRAMMAR_CHARACTERS = 65_536
"""A grammar, compiled like a schema."""
MAX_CHOICES = 1024
"""Choices of a structured output, compiled to one automaton."""
MAX_CHOICE_CHARACTERS = 4096
"""One choice."""
MAX_ROUTE_CHARACTERS = 2048
"""A route with its query."""
MAX_NAME_CHARACTERS = 512
"""A model's or role's name."""
MAX_BATCH_SIZE = 1_000_000
"""max_batch_size and min_batch_size: more than any answer has increments."""

# --- native jobs: fields of job["input"] ---

ENVELOPE_FIELDS = ("openai_route", "openai_input", "route", "body", "method")
"""Fields that make a job a call of one of vLLM's routes."""

BATCH_FIELDS = {
    "max_batch_size": "max_batch_size",
    "min_batch_size": "min_batch_size",
    "batch_size_growth_factor": "batch_size_growth_factor",
    "batch_size": "max_batch_size",  # the name in February 2024's pre-releases
    "growth_factor": "batch_size_growth_factor",  # likewise
}
"""Names of the stream's batch options, with the option that each sets."""

PROMPT_FIELDS = ("prompt", "messages", "apply_chat_template", "sampling_params", "model")
"""The native fields proper."""

CHAT_FIELDS = (
    "chat_template_kwargs",
    "tools",
    "tool_choice",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "documents",
    "reasoning_effort",
)
"""Native fields that shape how messages become a prompt; named and meant as on vLLM's chat route."""

NATIVE_TOOL_CHOICES = ("none", "auto")
"""The native output has no place for tool calls, so a choice that forces one cannot be honoured."""

HOISTED_FIELDS = (*CHAT_FIELDS, "model", "stream")
"""Native fields that are also understood inside sampling_params, where one past release read them."""

OPERATOR_FIELDS = {
    "chat_template": "CUSTOM_CHAT_TEMPLATE",
    "mm_processor_kwargs": "MM_PROCESSOR_KWARGS",
    "media_io_kwargs": "MEDIA_IO_KWARGS",
    "kv_transfer_params": "KV_TRANSFER_CONFIG",
    "ec_transfer_params": "EC_TRANSFER_CONFIG",
}
"""Fields that run templates, choose processors or name hosts to fetch from: never a job's to set unless the
operator allows it. With each, the setting that the operator has for it."""

IGNORED_FIELDS = {
    "use_openai_format": "the output's form follows from the input's since version 0.3",
    "user": "vLLM does not use it",
    "stream_options": "every native item holds its usage",
}
"""Native fields that are accepted and dropped, with the reason for the log."""

# --- sampling parameters ---


class Rule(NamedTuple):
    """How a sampling parameter is read.

    Attributes:
        kind: the reader (`sampling.py`).
        minimum, maximum: bounds of a number, both included; None for none.
        above: the number must be larger than `minimum`, not equal.
    """

    kind: str
    minimum: float | None = None
    maximum: float | None = None
    above: bool = False


SAMPLING_FIELDS = {
    "n": Rule("int", 1, MAX_N),
    "presence_penalty": Rule("float", -2, 2),
    "frequency_penalty": Rule("float", -2, 2),
    "repetition_penalty": Rule("float", 0, above=True),
    "temperature": Rule("float", 0),
    "top_p": Rule("float", 0, 1, above=True),
    "top_k": Rule("int", -1, MAX_TOKEN_ID),
    "min_p": Rule("float", 0, 1),
    "seed": Rule("int", -MAX_INTEGER - 1, MAX_INTEGER),
    "stop": Rule("stop"),
    "stop_token_ids": Rule("stop_token_ids"),
    "ignore_eos": Rule("bool"),
    "max_tokens": Rule("int", 1, MAX_TOKEN_COUNT),
    "min_tokens": Rule("int", 0, MAX_TOKEN_COUNT),
    "logprobs": Rule("logprobs", -1, MAX_LOGPROBS),
    "prompt_logprobs": Rule("logprobs", -1, MAX_LOGPROBS),
    "logprob_token_ids": Rule("logprob_token_ids"),
    "prompt_logprob_token_ids": Rule("token_id_rows"),
    "prompt_logprob_start": Rule("int", 0, MAX_TOKEN_COUNT),
    "skip_special_tokens": Rule("bool"),
    "spaces_between_special_tokens": Rule("bool"),
    "include_stop_str_in_output": Rule("bool"),
    "logit_bias": Rule("logit_bias"),
    "allowed_token_ids": Rule("allowed_token_ids"),
    "bad_words": Rule("bad_words"),
    "extra_args": Rule("extra_args"),
    "thinking_token_budget": Rule("int", -1, MAX_TOKEN_COUNT),
    "repetition_detection": Rule("repetition_detection"),
    "routed_experts_prompt_start": Rule("int", 0, MAX_TOKEN_COUNT),
    "skip_reading_prefix_cache": Rule("bool"),
    "watermarking": Rule("bool"),
    "stream_interval": Rule("int", 1, MAX_TOKEN_COUNT),
    "trace_decode_token_ids": Rule("allowed_token_ids"),
}
"""Keys that vLLM's SamplingParams takes (0.26 to 0.33; one that the installed version lacks is its own
error)."""

SAMPLING_ALIASES = {"max_completion_tokens": "max_tokens"}
"""Other names for the keys above."""

SAMPLING_EXTRAS = (
    "use_beam_search",
    "length_penalty",
    "truncate_prompt_tokens",
    "top_logprobs",
    "detokenize",
)
"""Documented parameters that are no keys of SamplingParams but keep their meaning."""

STRUCTURED_FIELDS = (
    "structured_outputs",
    "response_format",
    "guided_decoding",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "guided_whitespace_pattern",
)
"""All the names under which a constraint on the output may be given."""

SAMPLING_RELICS = {
    "best_of": "vLLM has not had it since its V1 engine",
    "early_stopping": "vLLM's beam search has no such choice any more",
    "guided_decoding_backend": "the backend is the operator's choice (STRUCTURED_OUTPUTS_CONFIG)",
}
"""Parameters that have lost their meaning: dropped with a warning that says why."""

REJECTED_SAMPLING = {
    "logits_processors": "it would name code for the worker to run; use logit_bias or structured_outputs",
    "output_kind": "the worker chooses it by `stream`",
    "flat_logprobs": "it changes the engine's internal form only",
    "skip_clone": "it is internal to vLLM",
    "output_text_buffer_length": "it is internal to vLLM",
}
"""Keys that SamplingParams has or had and no job may set, with the reason."""

MEANT = {
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "num_beams": "n with use_beam_search",
    "num_return_sequences": "n",
    "stop_sequences": "stop",
    "repeat_penalty": "repetition_penalty",
    "typical_p": "min_p",
    "do_sample": "temperature (0 for greedy decoding)",
    "text": "prompt",
    "query": "prompt",
    "inputs": "prompt",
    "endpoint": "route",
    "path": "route",
    "json_schema": "structured_outputs or response_format",
}
"""Names that other servers use, with ours: hints for the error of an unknown field."""

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""What a structured output can be constrained by: exactly one of these."""

CONSTRAINT_FLAGS = ("disable_any_whitespace", "disable_additional_properties")
"""Booleans that refine a constraint."""

CONSTRAINT_RELICS = ("backend", "disable_fallback", "backend_options")
"""Keys of the former guided_decoding that are the operator's choice today: dropped with a warning."""

RESPONSE_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
"""OpenAI's response_format types, as vLLM has them."""

# --- routes ---

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
METHODS_WITH_BODY = ("POST", "PUT", "PATCH")

CHAT_ROUTE = "/v1/chat/completions"
"""Where `openai_input` without a route goes."""

BODY_INTEGER_LIMITS = {
    "n": MAX_N,
    "best_of": MAX_N,
    "logprobs": MAX_LOGPROBS,
    "top_logprobs": MAX_LOGPROBS,
    "prompt_logprobs": MAX_LOGPROBS,
}
"""Limits on numbers in a route's body; their types and lower bounds are vLLM's business."""

BODY_LIST_LIMITS = {
    "prompt": MAX_PROMPTS,
    "messages": MAX_PROMPTS,
    "input": MAX_INPUTS,
    "documents": MAX_INPUTS,
    "queries": MAX_INPUTS,
    "data_1": MAX_INPUTS,
    "data_2": MAX_INPUTS,
    "text_1": MAX_INPUTS,
    "text_2": MAX_INPUTS,
    "items": MAX_INPUTS,
    "texts": MAX_INPUTS,
    "inputs": MAX_INPUTS,
    "label_token_ids": MAX_INPUTS,
    "images": MAX_MEDIA_PARTS,
    "videos": MAX_MEDIA_PARTS,
    "audio": MAX_MEDIA_PARTS,
    "logprob_token_ids": MAX_LOGPROB_TOKEN_IDS,
    "stop": MAX_STOP_STRINGS,
    "stop_sequences": MAX_STOP_STRINGS,
    "stop_token_ids": MAX_STOP_TOKEN_IDS,
    "bad_words": MAX_BAD_WORDS,
    "allowed_token_ids": MAX_ALLOWED_TOKEN_IDS,
}
"""Limits on lists in a route's body."""

BODY_OBJECTS = (
    "structured_outputs",
    "response_format",
    "stream_options",
    "chat_template_kwargs",
    "vllm_xargs",
    "logit_bias",
    "repetition_detection",
    "metadata",
    "sampling_params",
)
"""Fields of a route's body that are objects: vLLM's own readers take it for granted, and fail with a 500."""

BODY_LISTS_OF_OBJECTS = ("tools",)
"""Likewise, lists of objects."""

BODY_TEXT_LIMITS = {
    "stop": MAX_STOP_CHARACTERS,
    "stop_sequences": MAX_STOP_CHARACTERS,
    "bad_words": MAX_STOP_CHARACTERS,
}
"""Limits on each text in lists of a route's body."""

LISTS_OF_PARTS = ("prompt", "messages", "input")
"""Of those, the ones where a flat list of numbers or objects is one part, and only texts and lists are
several."""
