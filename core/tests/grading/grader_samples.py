"""Functions for the pool's tests, loaded by name in the worker process."""

import importlib
import os
import re
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


def doors(payload):
    """Try what ``payload["do"]`` says: a confined grader may only compute, read and import."""
    file = payload.get("file", "")
    ways = {
        "eval": lambda: eval("1 + 1"),
        "exec": lambda: exec("x = 1"),
        "sympy": lambda: __import__("sympy").sympify("__import__('os').getpid()"),
        "ast": lambda: compile(__import__("ast").parse("1"), "<text>", "exec"),
        "write": lambda: Path(file).write_text("x"),
        "create": lambda: os.close(os.open(file, os.O_CREAT | os.O_RDWR)),
        "remove": lambda: Path(__file__).unlink(),
        "system": lambda: os.system(f"touch {file}"),
        "popen": lambda: subprocess.run(["touch", file], check=True),
        "fork": lambda: os.fork() or os._exit(0),
        "socket": lambda: __import__("socket").socket(),
        "read": lambda: Path(__file__).read_text(),
        "import": lambda: importlib.import_module("wave"),
        "module": lambda: importlib.import_module("grader_made_here"),
        "template": template,
        "regex": lambda: re.compile("a+b"),
    }
    try:
        ways[payload["do"]]()
    except PermissionError as error:
        return {"refused": str(error)}
    return {"refused": None}


def template():
    exec("y = 1")
