"""Which adapter answers a native job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker_vllm.engine.frontend import Frontend
from worker_vllm.errors import ApplicationError

ADAPTERS = {"image": "for images", "audio": "for audio", "mine": "by name"}


def frontend() -> Frontend:
    models = SimpleNamespace(
        is_base_model=lambda name: name == "model",
        lora_requests=ADAPTERS,
        lora_resolvers=[],
        base_model_paths=[SimpleNamespace(name="model")],
    )
    llm = SimpleNamespace(model_config=SimpleNamespace(max_model_len=64))
    return Frontend(llm, SimpleNamespace(openai_serving_models=models))


def message(*kinds: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": kind} for kind in kinds]}


@pytest.mark.parametrize(
    ("model", "kinds", "expected"),
    [
        (None, ("text", "image_url"), "for images"),
        ("model", ("input_audio",), None),  # vLLM looks at the part before "_", which is "input" here
        ("model", ("audio_url",), "for audio"),
        (None, ("image_url", "audio_url"), None),
        (None, ("text",), None),
        (None, (None, 3, ["image"]), None),
        ("mine", ("image_url",), "by name"),
    ],
)
async def test_an_operators_adapter_for_a_modality_is_applied(
    model: str | None, kinds: tuple[Any, ...], expected: str | None
) -> None:
    assert await frontend().adapter(model, [{"role": "system", "content": "x"}, message(*kinds)]) == expected


async def test_a_name_that_nobody_has_is_a_404() -> None:
    with pytest.raises(ApplicationError) as caught:
        await frontend().adapter("other")
    assert (caught.value.code, caught.value.param) == (404, "model")
