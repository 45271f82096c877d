"""A worker without the SDK, which starts in a tenth of a second: for tests about processes.

It takes jobs one by one and answers each with its input. Input keys: `exit` (int: end at once with that
code), `stop_pod` (true: ask for a restart), `hang` (true: never answer, and ignore SIGTERM).
TINY_GRANDCHILD has it start a child in a session of its own that would outlive it, as an engine might;
TINY_SHARED_MEMORY has it make shared memory of that name, which it leaves to Python's resource tracker.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


def request(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=60) as response:
        return response.status, response.read()


def work(take_url, done_url):
    while True:
        status, body = request(take_url)
        if status == 204:
            continue
        job = json.loads(body)
        if job["input"].get("hang"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        if "exit" in job["input"]:
            print("worker summary: told to crash", flush=True)
            os._exit(job["input"]["exit"])
        result = {"output": {"input": job["input"], "pid": os.getpid(), "cwd": str(Path.cwd())}}
        if job["input"].get("stop_pod"):
            result["stopPod"] = True
        request(done_url.replace("$ID", job["id"]), result)


if __name__ == "__main__":
    if code := os.environ.get("TINY_FAILS"):
        print("noise\n\ntiny worker cannot start: told to fail\n", flush=True)
        sys.exit(int(code))
    if name := os.environ.get("TINY_SHARED_MEMORY"):
        from multiprocessing.shared_memory import SharedMemory

        memory = SharedMemory(name=name, create=True, size=16)
    if os.environ.get("TINY_GRANDCHILD"):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    pod = os.environ["RUNPOD_POD_ID"]
    work(
        os.environ["RUNPOD_WEBHOOK_GET_JOB"].replace("$ID", pod) + "&job_in_progress=0",
        os.environ["RUNPOD_WEBHOOK_POST_OUTPUT"].replace("$RUNPOD_POD_ID", pod) + "&isStream=false",
    )
