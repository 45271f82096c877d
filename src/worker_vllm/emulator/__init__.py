"""A local RunPod for one machine: the queue API, the OpenAI gateway and the worker-side protocol over HTTP.

An island: it knows only the wire (runpod-platform.md, runpod-sdk.md section 9) and imports no other room. All
state is in memory and goes with the process.
"""
