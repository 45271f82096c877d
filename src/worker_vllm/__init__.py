"""The RunPod Serverless worker for vLLM: one process, one AsyncLLM, native jobs and OpenAI routes."""

__version__ = "0.1.0"
