"""The container's entry: `python src/handler.py` is `worker-vllm run`.

The guard matters: vLLM's engine process and the SDK's ping process may be spawned, and a spawned child
imports the main module again; unguarded, each would start a worker of its own. Such a child ends with its
parent, as a forked one does, and if it is vLLM's, it reads vLLM's queues as a forked one.
"""

import multiprocessing
import sys

if __name__ == "__main__":
    from worker_vllm.cli import main

    sys.exit(main(["run", *sys.argv[1:]]))

if __name__ == "__mp_main__":
    from worker_vllm import children, vllm_queues

    children.end_with_parent()
    vllm_queues.wait_well_in(multiprocessing.current_process().name)
