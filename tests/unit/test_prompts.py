from __future__ import annotations

from typing import Any

import pytest

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import MAX_PROMPTS
from worker_vllm.prompts import read_chat, read_messages, read_prompts

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("value", "prompts", "many"),
    [
        ("hi", ("hi",), False),
        ("", ("",), False),
        (["a", "b"], ("a", "b"), True),
        (["a"], ("a",), True),
        ([1, 2, 3], ((1, 2, 3),), False),
        ([[1], [2, 3]], ((1,), (2, 3)), True),
        ([[1]], ((1,),), True),
    ],
)
def test_every_form_of_prompt_is_read(value: Any, prompts: tuple[Any, ...], many: bool) -> None:
    assert read_prompts(value, "prompt") == (prompts, many)


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        {"prompt_token_ids": [1]},
        [],
        [[]],
        [1, "a"],
        ["a", 1],
        [1, True],
        [1.5],
        [-1],
        [2**31],
        [[1], "a"],
        [[1], 2],
        [None],
        [["a"]],
        [[[1]]],
        ["a"] * (MAX_PROMPTS + 1),
        [[1]] * (MAX_PROMPTS + 1),
    ],
)
def test_anything_else_is_no_prompt(value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_prompts(value, "prompt")
    assert caught.value.param == "prompt"
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    "message",
    [
        USER,
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "x"},
    ],
)
def test_messages_keep_whatever_the_renderer_knows(message: dict[str, Any]) -> None:
    assert read_messages([message], "messages") == (message,)


@pytest.mark.parametrize(
    "value",
    [[], {}, USER, 5, ["hi"], [USER, "hi"], [{}], [{"role": 5}], [{"role": "user", "content": 5}], [None]],
)
def test_anything_else_is_no_message(value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_messages(value, "messages")
    assert caught.value.param == "messages"


def test_chat_fields_are_read_by_their_kinds() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert read_chat(
        {
            "chat_template_kwargs": {"enable_thinking": False},
            "tools": [tool],
            "tool_choice": "auto",
            "add_generation_prompt": "true",
            "add_special_tokens": False,
            "documents": [{"text": "d"}],
            "reasoning_effort": "low",
        }
    ) == {
        "chat_template_kwargs": {"enable_thinking": False},
        "tools": [tool],
        "tool_choice": "auto",
        "add_generation_prompt": True,
        "add_special_tokens": False,
        "documents": [{"text": "d"}],
        "reasoning_effort": "low",
    }


def test_continuing_the_final_message_wants_no_generation_prompt() -> None:
    assert read_chat({"continue_final_message": True}) == {
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert read_chat({"continue_final_message": False}) == {"continue_final_message": False}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"chat_template": "{{ x }}"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"tools": {}}, "tools"),
        ({"tools": ["f"]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"documents": "d"}, "documents"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
    ],
)
def test_a_bad_chat_field_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_chat(fields)
    assert caught.value.param == param
