"""Graders that break, loaded by name in the worker process. The gold names a file that remembers across processes."""

import os
import signal
import time
from pathlib import Path


def graded(payload):
    return {"verdict": "right" if "answer" in payload else "good_gold", "reason": "as always"}


def hangs_on_an_answer(payload):
    if "answer" in payload:
        time.sleep(600)
    return graded(payload)


def hangs(payload):
    time.sleep(600)


def dies_on_an_answer(payload):
    if "answer" in payload:
        os.kill(os.getpid(), signal.SIGKILL)
    return graded(payload)


def dies_on_the_first_answer(payload):
    marker = Path(payload["gold"])
    if "answer" in payload and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    return graded(payload)


def breaks_for_good_on_an_answer(payload):
    marker = Path(payload["gold"])
    if "answer" in payload:
        marker.touch()
    if marker.exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return graded(payload)


def eats_memory_on_an_answer(payload):
    if "answer" in payload:
        hoard = []
        while True:
            hoard.append(bytes(2**24))
    return graded(payload)


def babbles_on_an_answer(payload):
    return ["right"] if "answer" in payload else graded(payload)
