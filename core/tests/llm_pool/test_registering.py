"""What cannot be registered is refused with what to do, and leaves no backend behind."""

from __future__ import annotations

import pytest

from prorl.api import ConfigError, ModelFault
from prorl.testing.engines import free_port
from prorl.wire import BackendSpec


async def test_what_cannot_be_registered(pool, engine):
    one = engine()
    with pytest.raises(
        ConfigError, match=r"unknown dialect 'v11m'; known: llamacpp, nemo-rl, openai-chat, sglang, vllm"
    ):
        await pool.add(BackendSpec(url=one.url, dialect="v11m"))
    with pytest.raises(ConfigError, match=r"does not serve the model 'other'; it serves: scripted"):
        await pool.add(BackendSpec(url=one.url, model="other"))
    with pytest.raises(ConfigError, match="speaks none of: llamacpp, nemo-rl, openai-chat, sglang, vllm"):
        await pool.add(BackendSpec(url=one.url + "/v1"))
    with pytest.raises(ModelFault) as caught:
        await pool.add(BackendSpec(url=f"http://127.0.0.1:{free_port()}"))
    assert caught.value.code == "unreachable"
    with pytest.raises(ConfigError, match="not registered"):
        await pool.clear(["http://127.0.0.1:1"])
    assert pool.status().backends == []


async def test_a_named_dialect_that_the_server_does_not_speak(pool, engine):
    with pytest.raises(ModelFault):
        await pool.add(BackendSpec(url=engine().url, dialect="llamacpp"))
    assert pool.status().backends == []
