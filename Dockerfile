# syntax=docker/dockerfile:1
# The RunPod Serverless worker on vLLM's own image: `docker build --platform linux/amd64 -t you/worker-vllm .`
# With --build-arg BUILD=cpu the same on vLLM's CPU build, to try it without a GPU. See docs/image.md.

ARG VLLM_VERSION=v0.32.0
# A release pins the digest: vllm/vllm-openai:v0.32.0@sha256:…
ARG VLLM_IMAGE=vllm/vllm-openai:${VLLM_VERSION}
ARG PYTHON_IMAGE=python:3.11-slim
ARG BUILD=gpu


FROM ${VLLM_IMAGE} AS base-gpu

# vLLM's packages come without bytecode, and what Python makes at a start goes with the container. Measured on
# two busy CPU cores: the engine is up after 8 to 12 s with bytecode and after 38 s without.
RUN --mount=type=bind,source=builder/compile_modules.py,target=/tmp/compile_modules.py \
    python3 /tmp/compile_modules.py vllm torch transformers

# Only what vLLM's image lacks, without dependencies: nothing of vLLM's moves. The import proves while the
# image is built, not on a rented GPU, that the SDK finds everything it needs and runs with vLLM's fastapi.
COPY requirements.txt /requirements.txt
RUN python3 -m pip install --no-cache-dir --no-deps -r /requirements.txt \
    && python3 -c "import runpod.serverless"

ARG VLLM_VERSION
ARG VLLM_IMAGE
LABEL org.opencontainers.image.base.name="${VLLM_IMAGE}" \
      ai.vllm.version="${VLLM_VERSION}"


FROM ${PYTHON_IMAGE} AS base-cpu

# vLLM's CPU kernels are linked with libnuma. The user has the number of the one in vLLM's image.
RUN apt-get update \
    && apt-get install -y --no-install-recommends "libnuma1=2.0.*" \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 2000 --gid 0 --create-home vllm

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY builder/requirements/cpu.lock /requirements.txt
RUN python3 -m pip install --no-cache-dir --no-deps --extra-index-url ${TORCH_INDEX} -r /requirements.txt \
    && python3 -c "import runpod.serverless, vllm"

ARG PYTHON_IMAGE
LABEL org.opencontainers.image.base.name="${PYTHON_IMAGE}"


# hadolint ignore=DL3006
FROM base-${BUILD} AS base

# The Hugging Face cache lives under BASE_PATH, where RunPod mounts a network volume.
ARG BASE_PATH=/runpod-volume
# hadolint ignore=DL3064
ENV BASE_PATH=${BASE_PATH} \
    HF_HOME=${BASE_PATH}/huggingface-cache/hub \
    HUGGINGFACE_HUB_CACHE=${BASE_PATH}/huggingface-cache/hub \
    HF_DATASETS_CACHE=${BASE_PATH}/huggingface-cache/datasets \
    TOKENIZERS_PARALLELISM=false \
    PYTHONPATH=/src \
    WORKER_STATE_FILE=/tmp/worker-vllm.json

RUN printf '#!/bin/sh\nexec python3 -m worker_vllm "$@"\n' > /usr/local/bin/worker-vllm \
    && chmod +x /usr/local/bin/worker-vllm


# A model in the image: --build-arg MODEL_NAME=org/name, and --secret id=HF_TOKEN,env=HF_TOKEN for a gated one.
# Not under BASE_PATH, where a volume would hide it. See docs/models.md.
FROM base AS bake

COPY src /src
ARG MODEL_NAME=""
ARG MODEL_REVISION=""
# hadolint ignore=DL3064
ARG TOKENIZER_NAME=""
# hadolint ignore=DL3064
ARG TOKENIZER_REVISION=""
ARG QUANTIZATION=""
RUN --mount=type=secret,id=HF_TOKEN \
    mkdir -p /models /manifest \
    && if [ -n "${MODEL_NAME}" ]; then HF_HOME=/tmp/hf worker-vllm bake --to /models --root /manifest; fi


FROM base AS worker

# The model before the code, which changes more often: a new worker moves no weights.
COPY --from=bake /models /models
COPY --from=bake /manifest /
COPY src /src
RUN python3 -m compileall -q /src

ARG WORKER_VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=""
LABEL org.opencontainers.image.title="worker-vllm" \
      org.opencontainers.image.description="RunPod Serverless worker for vLLM" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${WORKER_VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# Root, as in vLLM's image: what RunPod mounts belongs to root, and a template cannot choose a user. Elsewhere
# --build-arg WORKER_USER=2000:0 (or `docker run --user`) works; see docs/image.md.
ARG WORKER_USER=root
USER ${WORKER_USER}

# For Docker, Compose and Kubernetes; RunPod goes by the SDK's pings. Loading weights may take long: until the
# start period has passed, "not yet" is no failure.
HEALTHCHECK --interval=30s --timeout=10s --start-period=1h --retries=3 CMD ["worker-vllm", "health"]

# In place of the base image's `vllm serve`. An old template's start command arrives as arguments.
ENTRYPOINT ["python3", "/src/handler.py"]
