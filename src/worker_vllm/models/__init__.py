"""From a model's name to its files: where they are, what they are, and how they get here.

`look` says what a name leads to without downloading weights; the worker's start, `worker-vllm bake` and the
doctor all go through it.
"""
