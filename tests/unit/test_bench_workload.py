"""What is asked of a target follows from the workload and the round alone."""

from __future__ import annotations

from worker_vllm.bench.workload import Workload, arrivals, native_input, openai_body, prompts


def test_a_round_has_the_same_prompts_each_time() -> None:
    workload = Workload(requests=5, seed=7)
    assert prompts(workload, 1) == prompts(workload, 1)


def test_no_two_rounds_share_a_prompt() -> None:
    """A prefix cache would answer the second round."""
    workload = Workload(requests=50, prompt_tokens=16)
    assert not set(prompts(workload, 0)) & set(prompts(workload, 1))


def test_another_seed_gives_other_prompts() -> None:
    assert prompts(Workload(seed=1), 0) != prompts(Workload(seed=2), 0)


def test_prompts_have_the_asked_number_of_words() -> None:
    assert {len(prompt.split()) for prompt in prompts(Workload(prompt_tokens=9), 0)} == {9}


def test_a_burst_arrives_at_once() -> None:
    assert arrivals(Workload(requests=3), 0) == [0.0, 0.0, 0.0]


def test_poisson_arrivals_ascend_and_keep_their_mean_rate() -> None:
    moments = arrivals(Workload(requests=2000, rate=50.0), 0)
    assert moments == sorted(moments)
    assert 35 < moments[-1] < 45  # 2000 at 50 per second


def test_prompts_do_not_depend_on_the_way_they_are_asked() -> None:
    """Targets and modes are compared on the same text."""
    assert prompts(Workload(streamed=True, route="chat"), 3) == prompts(Workload(streamed=False), 3)


def test_every_answer_has_the_full_length() -> None:
    body = openai_body(Workload(max_tokens=11), "hello", "m")
    assert (body["max_tokens"], body["ignore_eos"]) == (11, True)
    sampling = native_input(Workload(max_tokens=11), "hello")["sampling_params"]
    assert (sampling["max_tokens"], sampling["ignore_eos"]) == (11, True)


def test_a_chat_is_sent_as_one_user_message() -> None:
    body = openai_body(Workload(route="chat"), "hello", None)
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert "model" not in body and "prompt" not in body


def test_only_a_stream_asks_for_its_usage() -> None:
    assert openai_body(Workload(streamed=True), "x", None)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in openai_body(Workload(streamed=False), "x", None)


def test_a_workload_survives_json() -> None:
    workload = Workload(route="native", streamed=False, rate=2.5, concurrency=3, requests=9)
    assert Workload.from_json(workload.to_json()) == workload
