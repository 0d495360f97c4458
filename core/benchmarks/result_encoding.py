"""Encoding and decoding a finished rollout of 64k tokens, JSON and msgpack: time and size.

The result is made by the ledger: replies of 150 tokens and observations of 600, by turns. Logprobs are float32 numbers
written as doubles, as engines send them. Beside ours: Python's own json on the same result, and the size of the
paper's per-message form, where every message carries all tokens before it.

    python result_encoding.py [--tokens 65536] [--rounds 20]
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import time
from collections.abc import Callable
from typing import Any

import msgspec
from figures import figure, machine, percentile, show_rows

from prorl.api.llm import Generation
from prorl.llm.chat.ledger import Ledger, Source
from prorl.wire import RolloutResult
from prorl.wire.certificate import sign
from prorl.wire.soundness import check_result

KEY = b"not a secret, only a key"
REPLY, OBSERVATION = 150, 600
VOCABULARY = 151_936


def make(tokens: int) -> RolloutResult:
    draw = random.Random(7)

    def ids(count: int) -> list[int]:
        return [min(int(draw.expovariate(1 / 12_000)), VOCABULARY - 1) for _ in range(count)]

    def logprob() -> float:
        value = -draw.expovariate(3.0)
        return float(struct.unpack("f", struct.pack("f", value))[0])

    ledger = Ledger()
    stream = ledger.open(ids(800), text="x" * 3000, source=Source(model="m", tokenizer="t#" + "0" * 64))
    while len(stream) < tokens:
        sampled = ids(REPLY)
        generation = Generation(token_ids=sampled, logprobs=[logprob() for _ in sampled], finish="stop")
        stream.append_sampled(generation, after=stream.ids, backend="http://e", policy_version="1", text="y" * 600)
        stream.append_rendered(ids(OBSERVATION), role="tool", text="z" * 2400)
    result = RolloutResult(
        job_id="j", status="completed", stage="eval", handler="h", trajectory=ledger.trajectory(), reward=1.0
    )
    return sign(KEY, result)


def paper_form(result: RolloutResult) -> bytes:
    """``input_ids``, ``output_ids`` and ``logprobs`` per message."""
    trajectory = result.trajectory
    messages = []
    for turn in trajectory.turns:
        logprobs = trajectory.segments[turn.segment].logprobs[turn.start : turn.end]
        ids = {"input_ids": trajectory.input_ids(turn), "output_ids": trajectory.output_ids(turn)}
        messages.append({"role": turn.role, "content": turn.text, "logprobs": logprobs, **ids})
    return msgspec.json.encode(messages)


def timed(work: Callable[[], Any], rounds: int) -> float:
    """Median CPU milliseconds."""
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        taken.append((time.process_time() - began) * 1000)
    return percentile(taken, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    result, rounds = make(arguments.tokens), arguments.rounds
    (segment,) = result.trajectory.segments
    as_json, as_msgpack = msgspec.json.encode(result), msgspec.msgpack.encode(result)
    from_json = msgspec.json.Decoder(RolloutResult).decode
    from_msgpack = msgspec.msgpack.Decoder(RolloutResult).decode
    assert from_json(as_json) == from_msgpack(as_msgpack) == result
    assert check_result(from_json(as_json), key=KEY) == []
    plain = json.loads(as_json)
    print(f"{machine()}\n\n{len(segment.tokens)} tokens, {sum(segment.loss_mask)} of them sampled, CPU time")
    old = paper_form(result)
    size = len(as_json)
    rows = [("", "MiB", "encode ms", "decode ms", "size against JSON")]
    for name, data, encode, decode in (
        ("JSON", as_json, lambda: msgspec.json.encode(result), lambda: from_json(as_json)),
        ("msgpack", as_msgpack, lambda: msgspec.msgpack.encode(result), lambda: from_msgpack(as_msgpack)),
        ("JSON by Python's json", as_json, lambda: json.dumps(plain), lambda: json.loads(as_json)),
        ("the paper's form as JSON", old, lambda: paper_form(result), lambda: msgspec.json.decode(old)),
    ):
        times = timed(encode, rounds), timed(decode, rounds)
        rows.append((name, figure(len(data) / 2**20), *map(figure, times), f"{figure(len(data) / size)}x"))
    show_rows("A finished rollout", rows)
    certificate = len(msgspec.json.encode(result.trajectory.certificate))
    checking = timed(lambda: check_result(result, key=KEY), rounds)
    signing = timed(lambda: sign(KEY, result), rounds)
    print(
        f"\nThe certificate is {figure(certificate / 1024)} KiB of the JSON ({figure(100 * certificate / size)} %); "
        f"signing takes {figure(signing)} ms, checking everything {figure(checking)} ms."
    )


if __name__ == "__main__":
    main()
