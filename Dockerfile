# syntax=docker/dockerfile:1
# The RunPod Serverless worker on vLLM's own image: `docker build --platform linux/amd64 -t you/worker-vllm .`

ARG VLLM_VERSION=v0.32.0
FROM vllm/vllm-openai:${VLLM_VERSION}

# Only what vLLM's image lacks, without dependencies: nothing of vLLM's moves. The import proves while the
# image is built, not on a rented GPU, that the SDK finds everything it needs and runs with vLLM's fastapi.
COPY requirements.txt /requirements.txt
RUN python3 -m pip install --no-cache-dir --no-deps -r /requirements.txt \
    && python3 -c "import runpod.serverless"

# The Hugging Face cache lives under BASE_PATH, where RunPod mounts a network volume.
ARG BASE_PATH=/runpod-volume
ENV BASE_PATH=${BASE_PATH} \
    HF_HOME=${BASE_PATH}/huggingface-cache/hub \
    HUGGINGFACE_HUB_CACHE=${BASE_PATH}/huggingface-cache/hub \
    HF_DATASETS_CACHE=${BASE_PATH}/huggingface-cache/datasets \
    TOKENIZERS_PARALLELISM=false \
    PYTHONPATH=/src

COPY src /src
RUN printf '#!/bin/sh\nexec python3 -m worker_vllm "$@"\n' > /usr/local/bin/worker-vllm \
    && chmod +x /usr/local/bin/worker-vllm

# A model in the image: --build-arg MODEL_NAME=org/name, and --secret id=HF_TOKEN,env=HF_TOKEN for a gated one.
# Not under BASE_PATH, where a volume would hide it. See docs/models.md.
ARG MODEL_NAME=""
ARG MODEL_REVISION=""
ARG TOKENIZER_NAME=""
ARG TOKENIZER_REVISION=""
ARG QUANTIZATION=""
RUN --mount=type=secret,id=HF_TOKEN \
    if [ -n "${MODEL_NAME}" ]; then HF_HOME=/tmp/hf worker-vllm bake --to /models && rm -rf /tmp/hf; fi

# In place of the base image's `vllm serve`. An old template's start command arrives as arguments.
ENTRYPOINT ["python3", "/src/handler.py"]
