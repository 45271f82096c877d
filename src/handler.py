"""The container's entry: `python src/handler.py` is `worker-vllm run`.

The guard matters: vLLM's engine process and the SDK's ping process may be spawned, and a spawned child
imports the main module again; unguarded, each would start a worker of its own. Such a child ends with its
parent, as a forked one does.
"""

import sys

if __name__ == "__main__":
    from worker_vllm.cli import main

    sys.exit(main(["run", *sys.argv[1:]]))

if __name__ == "__mp_main__":
    from worker_vllm import children

    children.end_with_parent()
