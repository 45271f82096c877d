"""From a model's name to its files: where they are, what they are, and how they get here.

`look` says what a name leads to without downloading weights, and `resolve` does so for a configuration; the
worker's start, `worker-vllm bake` and the doctor all go through them.
"""

from worker_vllm.models.facts import AdapterFacts, ModelFacts, Weights
from worker_vllm.models.resolution import Resolution, config_reader, look, resolve

__all__ = ["AdapterFacts", "ModelFacts", "Resolution", "Weights", "config_reader", "look", "resolve"]
