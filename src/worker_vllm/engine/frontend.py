"""What native jobs need of vLLM's front end: adapters, rendering, sampling parameters.

Everything that touches a vLLM object on a native job's way goes through `Frontend`, so that tests can put a
scripted one in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from worker_vllm import vllm_errors
from worker_vllm.errors import ApplicationError, RequestError
from worker_vllm.vllm_compat import load


class Frontend:
    """vLLM's front end around one AsyncLLM. Its methods raise vLLM's errors: use them inside `translated`.

    Attributes:
        max_model_len: token ids that prompt and answer may hold together.
    """

    def __init__(self, llm: Any, state: Any) -> None:
        self._state = state
        self.max_model_len: int = llm.model_config.max_model_len

    def translated(self) -> AbstractContextManager[None]:
        """A context in which vLLM's exceptions become WorkerErrors."""
        return vllm_errors.translated()

    async def adapter(self, model: str | None, messages: Sequence[Mapping[str, Any]] = ()) -> Any:
        """The LoRA request for a job's `model`. For a served name, or none at all, the one that the operator
        has chosen for what the messages hold beside text (DEFAULT_MM_LORAS), as on the chat route; else None.

        Raises:
            ApplicationError: 404, in vLLM's own words, where no model or adapter has that name.
        """
        models = self._state.openai_serving_models
        if not model or models.is_base_model(model):
            # vLLM names such an adapter after its modality, and applies it where it is the only one.
            chosen = _modalities(messages) & models.lora_requests.keys()
            return models.lora_requests[chosen.pop()] if len(chosen) == 1 else None
        if model in models.lora_requests:
            return models.lora_requests[model]
        if models.lora_resolvers and load("envs").VLLM_ALLOW_RUNTIME_LORA_UPDATING:
            found = await models.resolve_lora(model)
            if not isinstance(found, load("ErrorResponse")):
                return found
        names = ", ".join(path.name for path in models.base_model_paths)
        message = f"The model `{model}` does not exist. Valid names: {names}."
        error = {"message": message, "type": "NotFoundError", "param": "model", "code": 404}
        raise ApplicationError(404, error, {"error": error})

    async def render_prompt(self, prompt: str | Sequence[int], truncate: int | None) -> Any:
        """The engine's input for a prompt given as text or token ids.

        Args:
            truncate: keep only so many of the last tokens; -1 means what the model holds; None keeps all.

        Raises:
            RequestError: too long, empty, or token ids that the model does not have.
        """
        if not isinstance(prompt, str) and truncate is None and len(prompt) > self.max_model_len:
            raise self._too_long(len(prompt))  # before vLLM reads each of them
        request = load("CompletionRequest")(
            prompt=prompt if isinstance(prompt, str) else list(prompt),
            # The renderer refuses a prompt that leaves no room for so many; none at all would mean 16.
            max_tokens=1,
            truncate_prompt_tokens=truncate,
        )
        (rendered,) = self._unless_refused(await self._state.online_renderer.render_completion(request))
        return rendered

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], truncate: int | None
    ) -> Any:
        """The engine's input for messages, through the same chat rendering as /v1/chat/completions.

        Args:
            options: fields of a chat completion request that shape the prompt (tools, documents, template
                options).
        """
        renderer = self._state.online_renderer
        fields = dict(options)
        # A native answer is the model's text as it is: tools go into the prompt and their calls are not
        # parsed, so nothing needs the parser without which vLLM refuses "auto".
        if fields.get("tools") and not renderer.enable_auto_tools:
            fields["tool_choice"] = "none"
        request = load("ChatCompletionRequest")(
            messages=list(messages), truncate_prompt_tokens=truncate, **fields
        )
        _, (rendered,) = self._unless_refused(await renderer.render_chat(request))
        return rendered

    def sampling_params(
        self,
        params: Mapping[str, Any],
        structured_outputs: Mapping[str, Any] | None,
        *,
        max_tokens: int,
        stream: bool,
    ) -> Any:
        """vLLM's SamplingParams. A stream's outputs hold what is new, a plain answer comes whole at its end.

        The model's generation_config.json is not merged in, unlike on the OpenAI routes: native jobs have
        always started from vLLM's neutral defaults, and clients rely on it.
        """
        kinds = load("RequestOutputKind")
        objects = {}
        if structured_outputs is not None:
            objects["structured_outputs"] = load("StructuredOutputsParams")(**structured_outputs)
        if (repetition := params.get("repetition_detection")) is not None:
            objects["repetition_detection"] = load("RepetitionDetectionParams")(**repetition)
        return load("SamplingParams")(
            **{**params, **objects},
            max_tokens=max_tokens,
            output_kind=kinds.DELTA if stream else kinds.FINAL_ONLY,
        )

    def room(self, rendered: Any) -> int:
        """How many token ids an answer to this input can have.

        Raises:
            RequestError: none: the prompt fills the context.
        """
        used = len(prompt_token_ids(rendered))
        if used >= self.max_model_len:
            raise self._too_long(used)
        return self.max_model_len - used

    def _too_long(self, tokens: int) -> RequestError:
        return RequestError(
            f"the prompt has {tokens} tokens and the model's context holds {self.max_model_len}; "
            "nothing is left for an answer",
            param="prompt",
        )

    @staticmethod
    def _unless_refused(result: Any) -> Any:
        """The renderer's result, or its refusal raised; a refusal is a value in vLLM."""
        if isinstance(result, load("ErrorResponse")):
            error = result.error.model_dump()
            raise ApplicationError(int(error["code"]), error, {"error": error})
        return result


def _modalities(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """What kinds of parts the messages hold: "text", "image" for image_url, and so on."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    kinds = (part.get("type") for part in parts if isinstance(part, Mapping))
    return {kind.split("_")[0] for kind in kinds if isinstance(kind, str)}


def prompt_token_ids(rendered: Any) -> Sequence[Any]:
    """The token ids of an engine input (of its decoder part, where it has two); embeddings, one per token,
    where there are no ids."""
    part = rendered.get("decoder_prompt") or rendered
    ids = part.get("prompt_token_ids")
    return ids if ids is not None else part["prompt_embeds"]
