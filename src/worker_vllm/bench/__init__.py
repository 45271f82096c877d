"""The benchmark: the same seeded load against several targets, side by side.

An island: it speaks HTTP and starts processes, and imports no other room of the worker (the raw engine's
child program is the one exception: it takes AsyncLLM from `vllm_compat`, because that is what it measures).
"""
