"""A native job's items: the engine's outputs in the shape that the worker has always had.

`{"choices": [{"tokens": [text, …]}], "usage": {"input": …, "output": …}}`, usage in token ids and cumulative.
`finish_reason`, `stop_reason`, `logprobs` and `prompt_logprobs` are added where there are any, and
`prompt_index` where the job gave a list of prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# JSON has no infinity; the OpenAI routes use this value too
_NEVER = -9999.0


class PromptOutputs:
    """The outputs of one prompt, in order, as items.

    Args:
        choices: how many answers the prompt gets.
        prompt_index: the prompt's place in the job's list; None where the job gave no list.
    """

    def __init__(self, choices: int, prompt_index: int | None) -> None:
        self._choices = choices
        self._prompt_index = prompt_index
        self._input_tokens = 0
        self._output_tokens = 0

    def item(self, outputs: Iterable[Any]) -> dict[str, Any]:
        """One item out of the next outputs of the engine, which hold only what is new."""
        choices: list[dict[str, Any]] = [{"tokens": []} for _ in range(self._choices)]
        item: dict[str, Any] = {"choices": choices}
        for output in outputs:
            self._input_tokens = len(output.prompt_token_ids or ())
            if output.prompt_logprobs:  # once, with the first output
                item["prompt_logprobs"] = positions_json(output.prompt_logprobs)
            for part in output.outputs:
                self._output_tokens += len(part.token_ids)
                _add(choices[part.index], part)
        item["usage"] = self._usage()
        return self._numbered(item)

    def completion_item(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The one item for a completion object of vLLM's OpenAI route."""
        usage = answer["usage"]
        self._input_tokens, self._output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        choices = [
            {"tokens": [choice["text"]], "finish_reason": choice["finish_reason"]}
            for choice in sorted(answer["choices"], key=lambda choice: choice["index"])
        ]
        return self._numbered({"choices": choices, "usage": self._usage()})

    def error_item(self, error: Mapping[str, Any]) -> dict[str, Any]:
        """The last item of a stream that failed. The error stands inside the choice: at the top, the SDK
        would take the item for the job's own failure and drop it."""
        choice = {"tokens": [], "finish_reason": "error", "error": dict(error)}
        return self._numbered({"choices": [choice], "usage": self._usage()})

    def _usage(self) -> dict[str, int]:
        return {"input": self._input_tokens, "output": self._output_tokens}

    def _numbered(self, item: dict[str, Any]) -> dict[str, Any]:
        return item if self._prompt_index is None else {"prompt_index": self._prompt_index, **item}


def _add(choice: dict[str, Any], part: Any) -> None:
    choice["tokens"].append(part.text)
    if part.finish_reason is not None:
        choice["finish_reason"] = part.finish_reason
    if part.stop_reason is not None:
        choice["stop_reason"] = part.stop_reason
    if part.logprobs:
        choice.setdefault("logprobs", []).extend(positions_json(part.logprobs))


def positions_json(positions: Sequence[Any]) -> list[dict[str, Any] | None]:
    """vLLM's log probabilities as JSON: per position, token id (as text) to logprob, rank and text; null for
    a position that has none, as a prompt's first."""
    return [
        None
        if position is None
        else {
            str(token_id): {
                "logprob": max(found.logprob, _NEVER),
                "rank": found.rank,
                "decoded_token": found.decoded_token,
            }
            for token_id, found in position.items()
        }
        for position in positions
    ]
