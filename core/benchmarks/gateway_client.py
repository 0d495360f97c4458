"""The Jupyter side of ipython_cells.py; runs in the gateway's own environment, which has none of ours.

Starts a gateway and a kernel, says ``{"started_s"}``, and runs the cell of its argument once per line of its input,
from the request to the kernel's ``idle``, answering each with ``{"result"}``.
"""

import json
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from urllib.error import URLError

import websocket  # websocket-client, which the gateway's own server requires


def request(kind, content):
    header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "username": "", "session": "bench", "version": "5.3"}
    return {"header": header, "parent_header": {}, "metadata": {}, "channel": "shell", "content": content}


def run(connection, code):
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": True}
    asked = request("execute_request", {**content, "user_expressions": {}})
    connection.send(json.dumps(asked))
    result, replied, idle = None, False, False
    while not (replied and idle):
        got = json.loads(connection.recv())
        if got["parent_header"].get("msg_id") != asked["header"]["msg_id"]:
            continue
        if got["msg_type"] == "execute_result":
            result = got["content"]["data"]["text/plain"]
        replied = replied or got["msg_type"] == "execute_reply"
        idle = idle or (got["msg_type"] == "status" and got["content"]["execution_state"] == "idle")
    return result


def post_until_up(url):
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data=b"{}", method="POST")) as answer:
                return json.load(answer)
        except URLError:
            time.sleep(0.05)


def main():
    began = time.perf_counter()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    log_level, where = "--KernelGatewayApp.log_level=ERROR", ("--ip=127.0.0.1", f"--port={port}")
    gateway = subprocess.Popen([sys.executable, "-m", "kernel_gateway", log_level, *where])
    try:
        kernel = post_until_up(f"http://127.0.0.1:{port}/api/kernels")["id"]
        connection = websocket.create_connection(f"ws://127.0.0.1:{port}/api/kernels/{kernel}/channels", timeout=60)
        run(connection, sys.argv[1])
        print(json.dumps({"started_s": time.perf_counter() - began}), flush=True)
        for _ in sys.stdin:
            print(json.dumps({"result": run(connection, sys.argv[1])}), flush=True)
        connection.close()
    finally:
        gateway.terminate()
        gateway.wait(60)


main()
