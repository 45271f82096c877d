from __future__ import annotations

import json
from types import SimpleNamespace

from tests.fakes import FakeOutput, FakePart
from worker_vllm.engine.outputs import PromptOutputs, positions_json


def output(*parts: FakePart) -> FakeOutput:
    return FakeOutput(list(parts), [1, 2, 3])


def test_an_item_has_the_old_shape() -> None:
    outputs = PromptOutputs(1, None)
    assert outputs.item([output(FakePart(0, "Hi", [5, 6], finish_reason="stop"))]) == {
        "choices": [{"tokens": ["Hi"], "finish_reason": "stop"}],
        "usage": {"input": 3, "output": 2},
    }


def test_usage_grows_from_item_to_item() -> None:
    outputs = PromptOutputs(1, None)
    outputs.item([output(FakePart(0, "a", [5]))])
    item = outputs.item([output(FakePart(0, "b", [6])), output(FakePart(0, "c", [7]))])
    assert item == {"choices": [{"tokens": ["b", "c"]}], "usage": {"input": 3, "output": 3}}


def test_every_answer_has_its_place_even_without_news() -> None:
    outputs = PromptOutputs(3, None)
    item = outputs.item([output(FakePart(2, "c", [5])), output(FakePart(0, "a", [6]))])
    assert [choice["tokens"] for choice in item["choices"]] == [["a"], [], ["c"]]


def test_a_prompt_of_a_list_is_numbered() -> None:
    outputs = PromptOutputs(1, 4)
    assert outputs.item([output(FakePart(0, "a", [5]))])["prompt_index"] == 4
    assert outputs.error_item({"message": "no"})["prompt_index"] == 4


def test_a_stop_string_is_named() -> None:
    part = FakePart(0, "a", [5], finish_reason="stop", stop_reason="END")
    assert PromptOutputs(1, None).item([output(part)])["choices"][0]["stop_reason"] == "END"


def test_logprobs_are_json_and_know_no_infinity() -> None:
    found = SimpleNamespace(logprob=float("-inf"), rank=None, decoded_token="\ufffd")
    assert positions_json([None, {5: found}]) == [
        None,
        {"5": {"logprob": -9999.0, "rank": None, "decoded_token": "\ufffd"}},
    ]
    json.dumps(positions_json([{5: found}]), allow_nan=False)


def test_logprobs_of_several_updates_are_joined() -> None:
    found = {5: SimpleNamespace(logprob=-1.0, rank=1, decoded_token="a")}
    parts = [FakePart(0, "a", [5], logprobs=[found]), FakePart(0, "b", [5], logprobs=[found, found])]
    item = PromptOutputs(1, None).item([output(part) for part in parts])
    assert len(item["choices"][0]["logprobs"]) == 3


def test_an_error_stands_inside_the_choice() -> None:
    outputs = PromptOutputs(1, None)
    outputs.item([output(FakePart(0, "a", [5]))])
    item = outputs.error_item({"message": "no", "code": 500})
    assert "error" not in item
    assert item["choices"] == [
        {"tokens": [], "finish_reason": "error", "error": {"message": "no", "code": 500}}
    ]
    assert item["usage"] == {"input": 3, "output": 1}


def test_a_completion_object_becomes_one_item() -> None:
    answer = {
        "choices": [
            {"index": 1, "text": "b", "finish_reason": "length"},
            {"index": 0, "text": "a", "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 4, "completion_tokens": 6},
    }
    assert PromptOutputs(2, None).completion_item(answer) == {
        "choices": [
            {"tokens": ["a"], "finish_reason": "stop"},
            {"tokens": ["b"], "finish_reason": "length"},
        ],
        "usage": {"input": 4, "output": 6},
    }
