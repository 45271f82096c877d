"""What is asked of a target: how many requests, when, with which text, over which route.

Everything here follows from the workload and the round's number alone, so every target of a round gets the
same prompts at the same moments; a round's prompts differ from every other round's, or a prefix cache would
answer them.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Literal

Route = Literal["completions", "chat", "native"]

# Words that byte-pair vocabularies hold whole, so that a prompt of n words is about n tokens.
_WORD_LIST = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car city community name president team minute idea body information back parent face others
level office door health person art war history party result change morning reason research girl
guy moment air teacher force education foot boy age policy music market sense nation plan
college interest death experience effect use class control field development role effort rate
"""
_WORDS = tuple(_WORD_LIST.split())


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One column of the report.

    Attributes:
        route: `completions` and `chat` go to OpenAI routes, `native` is the worker's own job input.
        streamed: whether the answer is asked for piece by piece.
        concurrency: requests in flight at most.
        requests: requests in all.
        prompt_tokens: length of each prompt, in words of about one token.
        max_tokens: new tokens of each answer; the end-of-text token is ignored, so every answer has this
            length.
        temperature: of the sampling; 1 keeps the text of a random model from repeating one token.
        rate: mean requests per second of Poisson arrivals; None offers all at once.
        seed: of the prompts and the arrivals.
        poll_seconds: pause between two polls of a native stream.
    """

    route: Route = "completions"
    streamed: bool = True
    concurrency: int = 16
    requests: int = 16
    prompt_tokens: int = 32
    max_tokens: int = 64
    temperature: float = 1.0
    rate: float | None = None
    seed: int = 0
    poll_seconds: float = 0.1

    @property
    def label(self) -> str:
        """A short name, unique among the workloads that one command line can ask for."""
        return f"{self.route} {'streamed' if self.streamed else 'plain'} {self.concurrency}"

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Workload:
        """The inverse of `to_json`."""
        return cls(**value)


def prompts(workload: Workload, round_number: int) -> list[str]:
    """The prompt of each request of one round."""
    chance = random.Random(f"{workload.seed}/{round_number}/prompts")
    return [" ".join(chance.choices(_WORDS, k=workload.prompt_tokens)) for _ in range(workload.requests)]


def arrivals(workload: Workload, round_number: int) -> list[float]:
    """When each request is offered, in seconds after the round's start, ascending."""
    if workload.rate is None:
        return [0.0] * workload.requests
    chance = random.Random(f"{workload.seed}/{round_number}/arrivals")
    moments, now = [], 0.0
    for _ in range(workload.requests):
        now += chance.expovariate(workload.rate)
        moments.append(now)
    return moments


def openai_body(workload: Workload, prompt: str, model: str | None) -> dict[str, Any]:
    """The body of one OpenAI request. A stream asks for its usage, which costs one event at its end."""
    body: dict[str, Any] = {
        "max_tokens": workload.max_tokens,
        "temperature": workload.temperature,
        "ignore_eos": True,
        "stream": workload.streamed,
    }
    if model:
        body["model"] = model
    if workload.streamed:
        body["stream_options"] = {"include_usage": True}
    if workload.route == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    return body


def native_input(workload: Workload, prompt: str) -> dict[str, Any]:
    """The `input` of one native job."""
    sampling = {
        "max_tokens": workload.max_tokens,
        "temperature": workload.temperature,
        "ignore_eos": True,
    }
    return {"prompt": prompt, "sampling_params": sampling, "stream": workload.streamed}
