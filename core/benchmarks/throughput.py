"""Rollouts per second through HTTP and all three stages, against a bare Litestar route in the same server process.

The handler does nothing, so what is left is the cost of the house: request, queues, stages, result. The bare route
takes the same request bytes and answers with as many bytes as a result has. Rounds alternate, so that a noisy machine
hurts both; the ratio is what counts.

    python throughput.py [--rounds 7] [--count 4000] [--concurrency 64]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from litestar import Request, Response, post

from prorl.api import AgentHandler, HandlerRecord, Job
from prorl.plugins.registry import Registry
from prorl.server.serve import RunningServer, calm_collector
from prorl.server.settings import ServerSettings, Settings


class Noop(AgentHandler):
    async def init(self, job: Job) -> Any:
        return None, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        return {}

    async def eval(self, job: Job) -> dict[str, Any]:
        return {"reward": 1.0}


BODY = json.dumps(
    {
        "domain": "noop",
        "instance": {
            "prompt": [{"role": "user", "content": "What is the sum of all primes below one hundred? " * 4}],
            "reward_model": {"ground_truth": "1060", "style": "rule"},
        },
    }
)


def bare_route(answer: bytes) -> Any:
    @post("/bare", status_code=200)
    async def bare(request: Request[Any, Any, Any]) -> Response[bytes]:
        await request.body()
        return Response(answer, media_type="application/json")

    return bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--concurrency", type=int, default=64)
    asked = parser.parse_args()
    registry = Registry(handlers={"noop": HandlerRecord(name="noop", factory=Noop, summary="does nothing")})
    server = RunningServer(Settings(server=ServerSettings(port=0)), registry)
    with server:
        port = urlsplit(server.url).port
        load = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("load.py")), str(port), str(asked.concurrency)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        def round_(path: str, count: int) -> dict[str, float]:
            assert load.stdin is not None
            assert load.stdout is not None
            load.stdin.write(json.dumps({"path": path, "body": BODY, "count": count}) + "\n")
            load.stdin.flush()
            answer: dict[str, float] = json.loads(load.stdout.readline())
            return answer

        size = round(round_("/process", 200)["answer_bytes"])
        server.app.register(bare_route(b" " * size))
        calm_collector()  # as `prorl serve` does once it listens
        round_("/bare", 500)
        round_("/process", 500)
        ratios, rates = [], {"bare": [], "process": []}
        for number in range(asked.rounds):
            bare = round_("/bare", asked.count)
            process = round_("/process", asked.count)
            ratios.append(process["rate"] / bare["rate"])
            rates["bare"].append(bare["rate"])
            rates["process"].append(process["rate"])
            print(
                f"round {number + 1}: bare {bare['rate']:7.0f}/s p99 {bare['p99_ms']:5.1f} ms | rollouts "
                f"{process['rate']:7.0f}/s p99 {process['p99_ms']:5.1f} ms | ratio {ratios[-1]:.2f}"
            )
        assert load.stdin is not None
        load.stdin.close()
        load.wait()
    print(
        f"median of {asked.rounds}: bare {statistics.median(rates['bare']):.0f}/s, rollouts "
        f"{statistics.median(rates['process']):.0f}/s, ratio {statistics.median(ratios):.2f} "
        f"(answer {size} bytes, {asked.concurrency} connections, {os.cpu_count()} cores, Python "
        f"{platform.python_version()})"
    )


if __name__ == "__main__":
    main()
