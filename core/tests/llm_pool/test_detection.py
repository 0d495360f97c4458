"""Which dialect a server speaks is found by asking it, and no dialect takes another's server for its own."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from prorl.api import ConfigError, ModelFault
from prorl.api.records import DialectRecord
from prorl.llm.plugin import prorl_llm_dialects
from prorl.llm.pool import BackendPool
from prorl.testing.bytebpe import write_tokenizer
from prorl.testing.httpd import HttpServer, Request, Response, error_response, json_response
from prorl.testing.scripted.chat import ChatSpeech, NemoRlSpeech
from prorl.testing.scripted.llamacpp import LlamaCppSpeech
from prorl.testing.scripted.sglang import SglangSpeech
from prorl.testing.scripted.vllm import VllmSpeech
from prorl.wire import BackendSpec

SPEECHES = {
    "vllm": VllmSpeech,
    "sglang": SglangSpeech,
    "llamacpp": LlamaCppSpeech,
    "nemo-rl": NemoRlSpeech,
    "openai-chat": ChatSpeech,
}


@pytest.mark.parametrize("dialect", SPEECHES)
async def test_each_factory_knows_its_own_servers_and_no_others(engine, dialect):
    one = engine(speech=SPEECHES[dialect]())
    async with httpx.AsyncClient() as client:
        claims = {record.name for record in prorl_llm_dialects() if await record.factory.detect(client, one.url)}
    has_models = dialect != "nemo-rl"
    assert claims == {dialect, *(["openai-chat"] if has_models else [])}  # the last resort, which is asked last


def test_the_last_resort_is_asked_last():
    records = sorted(prorl_llm_dialects(), key=lambda record: -record.preference)
    assert records[-1].name == "openai-chat"
    assert len({record.preference for record in records}) == len(records)


@pytest.mark.parametrize("dialect", SPEECHES)
async def test_a_server_is_registered_in_its_own_dialect(pool, engine, tmp_path, dialect):
    write_tokenizer(tmp_path)
    one = engine(speech=SPEECHES[dialect](), max_context=512)
    status = await pool.add(BackendSpec(url=one.url, tokenizer=str(tmp_path)))
    assert status.dialect == dialect
    assert pool._backends[one.url].info.max_context == 512
    await pool._backends[one.url].check(10.0)  # healthy, and describes itself in the same way again


@pytest.mark.parametrize("dialect", ["sglang", "nemo-rl"])
async def test_without_a_template_a_tokenizer_is_asked_for(pool, engine, dialect):
    one = engine(speech=SPEECHES[dialect]())
    with pytest.raises(ConfigError, match="hands out no chat template: register it with tokenizer"):
        await pool.add(BackendSpec(url=one.url))
    assert pool.status().backends == []


async def test_a_context_that_nobody_names_is_asked_for(pool, engine):
    one = engine(speech=ChatSpeech(max_model_len=False), max_context=512)
    with pytest.raises(ConfigError, match="register it with max_context"):
        await pool.add(BackendSpec(url=one.url))
    await pool.add(BackendSpec(url=one.url, max_context=300))
    assert pool._backends[one.url].info.max_context == 300


class Says(HttpServer):
    """The same answer on every path, and what the requests' headers were."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer
        self.headers: list[dict[str, str]] = []

    async def handle(self, request: Request) -> Response:
        self.headers.append(request.headers)
        return self.answer


class Mute(HttpServer):
    """Answers everything but ``/tokenize``."""

    async def handle(self, request: Request) -> Response:
        if request.path == "/tokenize":
            await asyncio.Event().wait()
        return json_response({})


ODD = {
    "nothing": Response(status=404),
    "an error": Response(status=400, body=b"?"),
    "a page": Response(body=b"<html>hello</html>"),
    "a number": json_response(1),
    "an empty object": json_response({}),
    "a list": json_response([]),
    "no models": json_response({"object": "list", "data": []}),
    "models without names": json_response({"data": [{"name": "x"}]}),
    "ids as tokens of everything": json_response({"tokens": [1, 1, 1, 1]}),
    "the same tokens for everything": json_response({"tokens": [1, 1, 1, 1], "max_model_len": 9}),
}


@pytest.mark.parametrize("answer", ODD)
async def test_a_server_that_is_none_of_them(pool, answer):
    with Says(ODD[answer]) as server, pytest.raises(ConfigError, match="speaks none of"):
        await pool.add(BackendSpec(url=server.url))


async def test_a_server_that_does_not_work_is_no_unknown_one(pool):
    with Says(Response(status=503, body=b"loading")) as server, pytest.raises(ModelFault, match="503") as caught:
        await pool.add(BackendSpec(url=server.url))
    assert caught.value.code == "unreachable"


async def test_a_named_dialect_is_not_asked_for(pool, engine):
    one = engine()
    status = await pool.add(BackendSpec(url=one.url, dialect="openai-chat"))
    assert status.dialect == "openai-chat"  # vLLM has a list of models too


async def test_an_api_key_is_named_by_a_variable_of_the_service(pool, monkeypatch):
    models = json_response({"data": [{"id": "m", "owned_by": "someone", "max_model_len": 99}]})
    with Says(models) as server:
        spec = BackendSpec(url=server.url, dialect="openai-chat", api_key_env="PRORL_LLM_KEY_TEST")
        with pytest.raises(ConfigError, match="no PRORL_LLM_KEY_TEST"):
            await pool.add(spec)
        assert server.headers == []
        monkeypatch.setenv("PRORL_LLM_KEY_TEST", "the-key\n")
        status = await pool.add(spec)
        assert {headers.get("authorization") for headers in server.headers} == {"Bearer the-key"}
        assert "the-key" not in repr((status, pool.status(), pool._backends[server.url].spec))


async def test_a_server_that_wants_a_key_says_so_and_never_repeats_it(pool, monkeypatch):
    monkeypatch.setenv("PRORL_LLM_KEY_TEST", "sk-123")
    refusal = error_response(401, "Incorrect API key provided: sk-123.")
    with Says(refusal) as server:
        with pytest.raises(ConfigError, match=r"wants an API key \(it answered 401\): register it with api_key_env"):
            await pool.add(BackendSpec(url=server.url))
        with pytest.raises(ModelFault, match=r"provided: \(the key\)\.") as caught:
            await pool.add(BackendSpec(url=server.url, dialect="openai-chat", api_key_env="PRORL_LLM_KEY_TEST"))
    assert "sk-123" not in str(caught.value)


async def test_a_server_that_never_answers_a_question_holds_nobody_up(make_pool):
    pool = make_pool(health_timeout_s=1.0)
    with Mute() as server, pytest.raises(ModelFault, match=r"\(is it .*\?\) did not answer in 1 s") as caught:
        await pool.add(BackendSpec(url=server.url))
    assert caught.value.code == "unreachable"


async def test_a_plugins_own_error_in_looking_is_a_fault(engine):
    class Broken:
        async def detect(self, client, url):
            raise KeyError("a bug")

    one = engine()
    pool = BackendPool({"mine": DialectRecord(name="mine", factory=Broken(), summary="")})
    with pytest.raises(ModelFault, match=r"\(is it mine\?\): KeyError"):
        await pool.add(BackendSpec(url=one.url))
    await pool.close()
