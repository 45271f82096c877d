#!/usr/bin/env bash
# The figures of docs/performance.md, on a GPU machine without a network that has Python 3.12, torch 2.11+cu130 and
# vLLM 0.26 unpacked under $SITE.
#
#   builder/gpu/bench_h200.sh table [135m|8b]   all targets, 256 and 64 streams, streamed and plain (both: < 10 min)
#   builder/gpu/bench_h200.sh serve             the same at 135M with `vllm serve` itself beside them
#   builder/gpu/bench_h200.sh starts            process start to first token, twice each, one at a time
#   builder/gpu/bench_h200.sh single            one stream, at round trips of 20, 100 and 300 ms
#   builder/gpu/bench_h200.sh volume            a start with an empty volume, and one with what that left there
#
# Variables: OUT (results), EXTRA (holds peer/src/main.py and models/, from builder.gpu.dummy_models), SITE, ROUNDS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
what=${1:?usage: bench_h200.sh table|serve|starts|single|volume [135m|8b]} only=${2:-}
OUT=${OUT:-build/bench} EXTRA=${EXTRA:-$PWD/.gpu-extra} SITE=${SITE:-/tmp/site} ROUNDS=${ROUNDS:-2}
mkdir -p "$OUT"
logs=$(mktemp -d)
trap 'tar -C "$logs" -czf "$OUT/logs-$what$only.tgz" .' EXIT

export PYTHONPATH=$SITE:$PWD/src PATH=$PWD/builder/gpu/bin:$PATH PYTHONUNBUFFERED=1
# FlashInfer is not in the bundle, and nothing can be downloaded.
export VLLM_USE_FLASHINFER_SAMPLER=0 HF_HUB_OFFLINE=1 VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-/tmp/vllm-cache}
peer="peer=worker:python3 $EXTRA/peer/src/main.py"

# Unpacked wheels have none, and a start without it is no start of the image (docs/image.md).
with_bytecode() { python3 builder/compile_modules.py vllm torch worker_vllm; }

bench() { # NAME SHAPE ARGUMENT...
  local name=$1 shape=$2
  shift 2
  echo "== $name"
  python3 -m worker_vllm bench --model "$EXTRA/models/dummy-$shape" --engine load_format=dummy \
    --engine max_model_len=2048 --rtt-ms 20 --max-tokens 256 --baseline "${BASELINE:-raw}" --logs "$logs/$name" \
    --json "$OUT/$name.json" --text "$OUT/$name.txt" --svg "$OUT/$name.svg" "$@"
}

# Several engines share the card: each gets a cache of the same fixed size, and memory is not profiled.
shared() { # GIB
  echo --engine "kv_cache_memory_bytes=$(($1 << 30))" --engine gpu_memory_utilization=0.1 --start-together
}

table() { # SHAPE GIB TARGET...
  local shape=$1 gib=$2
  shift 2
  # shellcheck disable=SC2046 # words on purpose
  bench "$what-$shape" "$shape" $(shared "$gib") --mode streamed,plain --concurrency 256,64 --rounds "$ROUNDS" "$@"
}

case $what in
table)
  [ "$only" = 8b ] || table 135m 8 --target raw --target worker --target "$peer"
  [ "$only" = 135m ] || table 8b 12 --target raw --target worker --target "$peer"
  ;;
serve) table 135m 8 --target raw --target worker --target "$peer" --target serve ;;
starts)
  with_bytecode
  BASELINE=peer bench "starts-${only:-135m}" "${only:-135m}" --target worker --target "$peer" --one-at-a-time \
    --concurrency 1 --rounds "$ROUNDS" --no-warm-up
  ;;
single)
  # shellcheck disable=SC2046 # words on purpose
  bench "single-${only:-135m}" "${only:-135m}" $(shared 8) --concurrency 1 --requests 3 --rounds "$ROUNDS" \
    --target raw --target rtt20=worker --target rtt100=worker --target rtt300=worker \
    --platform "rtt100:--rtt-ms 100" --platform "rtt300:--rtt-ms 300"
  ;;
volume)
  with_bytecode
  unset VLLM_CACHE_ROOT
  export BASE_PATH=/dev/shm # a file system that is mounted: all that a volume has to be
  rm -rf "$BASE_PATH/compile-cache"
  home=$(mktemp -d)
  for round in cold warm; do
    echo "== $round"
    # What the kernels' libraries keep at home would make the second start warm without a volume. The folder's name
    # stays: vLLM 0.26 makes it a part of its cache's key.
    rm -rf "$home" && mkdir "$home"
    HOME=$home LOAD_FORMAT=dummy MAX_MODEL_LEN=2048 python3 -m worker_vllm local --once --port 0 \
      --model "$EXTRA/models/dummy-${only:-135m}" --worker-log "$logs/volume-$round.log" | tee "$OUT/volume-$round.txt"
    grep -hoE 'compiled code is kept.*|torch.compile.*|Graph capturing.*|Directly load.*|init engine.*|in service.*' \
      "$logs/volume-$round.log" | tee -a "$OUT/volume-$round.txt" || true
  done
  du -sh "$BASE_PATH"/compile-cache/*/*/* | tee "$OUT/volume.txt"
  ;;
*)
  echo "bench_h200.sh: $what: expected table, serve, starts, single or volume" >&2
  exit 2
  ;;
esac
