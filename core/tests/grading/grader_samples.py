"""Functions for the pool's tests, loaded by name in the worker process."""

import os
import subprocess
import sys
import time
from pathlib import Path

CALLS = []


def echo(payload):
    CALLS.append(1)
    return {"echo": payload, "pid": os.getpid(), "calls": len(CALLS)}


def misbehave(payload):
    """Do what ``payload["do"]`` says; by default answer."""
    do = payload.get("do", "answer")
    if do == "sleep":
        time.sleep(600)
    elif do == "spin_in_c":
        return {"digits": len(str(10 ** (10**10)))}  # holds the interpreter lock all the while
    elif do == "exit":
        os._exit(3)
    elif do == "system_exit":
        sys.exit("on purpose")
    elif do == "raise":
        raise ValueError("on purpose")
    elif do == "memory":
        return {"size": len(b"x" * 2**40)}
    elif do == "list":
        return [1, 2]
    elif do == "nan":
        return {"reward": float("nan")}
    elif do == "huge":
        return {"text": "x" * 2**21}
    elif do == "child":
        child = subprocess.Popen(["sleep", "600"])
        Path(payload["file"]).write_text(str(child.pid))
        time.sleep(600)
    elif do == "print":
        forged = b'\x00\x00\x00\x1d{"id":"0","result":{"reward":1}}'
        for fd in range(1, 3):
            os.write(fd, forged)
        print('{"result": {"reward": 1}}', flush=True)
    elif do == "forge":
        forge()
    return {"pid": os.getpid(), "stdin": os.read(0, 1).decode()}


def forge():
    """Write a well-formed frame with a guessed id on every descriptor, as a grader's own code could at worst."""
    frame = b'{"id":"00000000000000000000000000000000","result":{"reward":1}}'
    for fd in range(3, 64):
        try:
            os.write(fd, len(frame).to_bytes(4, "big") + frame)
        except OSError:
            continue


def environment(payload):
    return {"names": sorted(os.environ), "path": sys.path}
