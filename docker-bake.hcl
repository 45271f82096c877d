# docker buildx bake          the GPU image, as it is deployed
# docker buildx bake cpu      the same on vLLM's CPU build, to try it without a GPU
# docker buildx bake baked    with a model in it: MODEL_NAME=org/name docker buildx bake baked
# Variables come from the environment: IMAGE=registry/name TAG=1.2.3 docker buildx bake --push

variable "IMAGE" {
  default = "worker-vllm"
}

variable "TAG" {
  default = "latest"
}

variable "VLLM_VERSION" {
  default = "v0.32.0"
}

# A release pins the digest of vLLM's image: vllm/vllm-openai:v0.32.0@sha256:…
variable "VLLM_IMAGE" {
  default = ""
}

variable "WORKER_VERSION" {
  default = "0.1.0"
}

variable "REVISION" {
  default = "unknown"
}

variable "SOURCE" {
  default = ""
}

variable "MODEL_NAME" {
  default = ""
}

variable "MODEL_REVISION" {
  default = ""
}

variable "TOKENIZER_NAME" {
  default = ""
}

variable "TOKENIZER_REVISION" {
  default = ""
}

variable "QUANTIZATION" {
  default = ""
}

group "default" {
  targets = ["gpu"]
}

target "gpu" {
  context    = "."
  dockerfile = "Dockerfile"
  target     = "worker"
  platforms  = ["linux/amd64"]
  tags       = ["${IMAGE}:${TAG}"]
  args = {
    VLLM_VERSION   = VLLM_VERSION
    VLLM_IMAGE     = VLLM_IMAGE != "" ? VLLM_IMAGE : "vllm/vllm-openai:${VLLM_VERSION}"
    WORKER_VERSION = WORKER_VERSION
    REVISION       = REVISION
    SOURCE         = SOURCE
  }
}

target "cpu" {
  inherits = ["gpu"]
  tags     = ["${IMAGE}:${TAG}-cpu"]
  args = {
    BUILD = "cpu"
  }
}

target "baked" {
  inherits = ["gpu"]
  tags     = ["${IMAGE}:${TAG}-baked"]
  args = {
    MODEL_NAME         = MODEL_NAME
    MODEL_REVISION     = MODEL_REVISION
    TOKENIZER_NAME     = TOKENIZER_NAME
    TOKENIZER_REVISION = TOKENIZER_REVISION
    QUANTIZATION       = QUANTIZATION
  }
  # from the environment, and kept nowhere
  secret = ["id=HF_TOKEN,env=HF_TOKEN"]
}
