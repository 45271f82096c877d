"""`python -m worker_vllm`: the same as the installed command `worker-vllm`."""

import sys

from worker_vllm.cli import main

if __name__ == "__main__":
    sys.exit(main())
