"""What is wrong with a request is said at once, as problem+json, with the place and what to do."""

from __future__ import annotations

import json

import msgspec
import pytest

OK = {"domain": "echo", "instance": {}}
JSON = {"content-type": "application/json"}

TABLE = [
    ("malformed JSON", b'{"domain": ', 400, "not valid application/json"),
    ("empty body", b"", 400, "not valid application/json"),
    ("not UTF-8", b'{"domain": "\xff"}', 400, "body"),
    ("deep nesting", b"[" * 200_000, 400, ""),
    ("an array", [], 400, "Expected `object`, got `array`"),
    ("missing instance", {"domain": "echo"}, 400, "missing required field `instance`"),
    ("instance of a wrong type", {"domain": "echo", "instance": "row"}, 400, "$.instance"),
    ("unknown field", {**OK, "jobid": "a"}, 400, "unknown field `jobid`"),
    ("priority as text", {**OK, "priority": "1"}, 400, "$.priority"),
    ("priority as float", {**OK, "priority": 1.5}, 400, "$.priority"),
    ("priority as bool", {**OK, "priority": True}, 400, "$.priority"),
    ("temperature as text", {**OK, "sampling_params": {"temperature": "1"}}, 400, "$.sampling_params.temperature"),
    ("temperature below 0", {**OK, "sampling_params": {"temperature": -0.1}}, 400, "$.sampling_params.temperature"),
    ("top_p above 1", {**OK, "sampling_params": {"top_p": 1.1}}, 400, "$.sampling_params.top_p"),
    ("top_p of 0", {**OK, "sampling_params": {"top_p": 0}}, 400, "$.sampling_params.top_p"),
    ("max_tokens of 0", {**OK, "sampling_params": {"max_tokens": 0}}, 400, "$.sampling_params.max_tokens"),
    ("token ids as text", {**OK, "sampling_params": {"stop_token_ids": ["1"]}}, 400, "$.sampling_params.stop_token"),
    ("token ids as floats", {**OK, "sampling_params": {"stop_token_ids": [1.0001]}}, 400, "stop_token_ids[0]"),
    ("negative token ids", {**OK, "sampling_params": {"stop_token_ids": [-1]}}, 400, "stop_token_ids[0]"),
    ("unknown sampling field", {**OK, "sampling_params": {"topp": 1}}, 400, "unknown field `topp`"),
    ("budget of 0", {**OK, "budgets": {"run_s": 0}}, 400, "$.budgets.run_s"),
    ("job_id with a slash", {**OK, "job_id": "a/b"}, 400, "$.job_id"),
    ("job_id with a line break", {**OK, "job_id": "a\n"}, 400, "$.job_id"),
    ("job_id empty", {**OK, "job_id": ""}, 400, "$.job_id"),
    ("job_id too long", {**OK, "job_id": "a" * 201}, 400, "$.job_id"),
    ("unknown domain", {"domain": "nope", "instance": {}}, 404, "known: echo, echo/*"),
    ("unknown data_source", {"instance": {"data_source": "nope"}}, 404, "known: echo, echo/*"),
    ("no domain at all", {"instance": {}}, 400, "names no domain"),
    ("a plugin that failed", {"domain": "lost", "instance": {}}, 503, "no module named lost"),
    ("unknown handler setting", {**OK, "settings": {"truns": 3}}, 400, "unknown field 'truns'; did you mean `turns`?"),
    ("handler setting of a wrong type", {**OK, "settings": {"turns": "3"}}, 400, "$.turns"),
    ("no backend, not waiting", {**OK, "backend_wait_s": 0}, 503, "POST /add_llm_server"),
    ("oversized body", {"domain": "echo", "instance": {"x": "y" * 2_000_000}}, 413, "body_limit_mb"),
]


@pytest.mark.parametrize("path", ["/process", "/jobs"])
@pytest.mark.parametrize(("body", "status", "said"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_bad_job(client, path, body, status, said):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=raw, headers=JSON)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert said in problem["detail"]


def test_the_place_is_there_for_programs_too(client):
    answer = client.post("/process", json={**OK, "sampling_params": {"top_p": "1"}})
    assert answer.json()["extra"] == {"path": "$.sampling_params.top_p", "reason": "Expected `float`, got `str`"}
    answer = client.post("/process", json={"domain": "nope", "instance": {}})
    assert answer.json()["extra"] == {"domain": "nope", "known": ["echo", "echo/*"]}
    answer = client.post("/process", json={"domain": "lost", "instance": {}})
    assert answer.json()["extra"]["plugins"][0]["state"] == "import-failed"


def test_retry_after_where_waiting_helps(client):
    assert "retry-after" in client.post("/process", json={**OK, "backend_wait_s": 0}).headers


def test_a_media_type_that_is_not_spoken(client):
    answer = client.post("/process", data={"domain": "echo"})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["detail"]


def test_msgpack_is_as_strict(client):
    headers = {"content-type": "application/msgpack"}
    body = {**OK, "sampling_params": {"stop_token_ids": ["1"]}}
    answer = client.post("/process", content=msgspec.msgpack.encode(body), headers=headers)
    assert answer.status_code == 400
    assert "stop_token_ids[0]" in answer.json()["detail"]
    answer = client.post("/process", content=b"\xc1", headers=headers)
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("GET", "/nowhere", None, 404, "/schema"),
        ("GET", "/process", None, 405, "/schema"),
        ("GET", "/jobs/none", None, 404, "no job 'none'"),
        ("GET", "/jobs/none/events", None, 404, "no job 'none'"),
        ("GET", "/jobs?limit=0", None, 400, "$.limit"),
        ("GET", "/jobs?limit=x", None, 400, "$.limit"),
        ("GET", "/jobs?state=lost", None, 400, "$.state"),
        ("GET", "/jobs?stat=queued", None, 400, "stat"),
        ("POST", "/cancel", {}, 400, "name what to cancel"),
        ("POST", "/cancel", {"job_id": "none"}, 404, "no job 'none'"),
        ("POST", "/cancel", {"jobid": "none"}, 400, "unknown field"),
        ("POST", "/stop", {"timeout_s": "1"}, 400, "$.timeout_s"),
        ("POST", "/add_llm_server", {}, 400, "missing required field `url`"),
        ("POST", "/add_llm_server", {"url": "not a url"}, 400, "$.url"),
        ("POST", "/add_llm_server", {"url": "http://127.0.0.1:1", "dialect": "klingon"}, 400, "klingon"),
        ("POST", "/add_llm_server", {"url": "http://127.0.0.1:1", "policy_version": ""}, 400, "$.policy_version"),
        ("POST", "/add_llm_server", {"url": "http://[::1"}, 400, "is no URL"),
        ("POST", "/add_llm_server", {"url": "http://xn--a"}, 400, "is no URL"),
        ("POST", "/add_llm_server", {"url": "http://127.0.0.1:1\x00"}, 400, "is no URL"),
        ("POST", "/add_llm_server", {"url": "http://:80"}, 400, "server's root"),
        ("POST", "/add_llm_server", {"url": "http://127.0.0.1:1/?key=x"}, 400, "server's root"),
        ("POST", "/clear_llm_server", {"urls": ["http://127.0.0.1:1"]}, 400, "not registered"),
    ],
)
def test_other_bad_requests(client, method, path, body, status, said):
    answer = client.request(method, path, json=body) if body is not None else client.request(method, path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]


def test_last_event_id_must_be_a_number(client):
    client.post("/process", json={**OK, "job_id": "ended"})
    answer = client.get("/jobs/ended/events", headers={"last-event-id": "x"})
    assert answer.status_code == 400


def test_a_missing_backend_is_waited_for_as_long_as_asked(client):
    answer = client.post("/process", json={"domain": "echo", "instance": {"chat": 1}, "backend_wait_s": 0.05})
    assert answer.status_code == 200
    result = answer.json()
    assert (result["status"], result["error"]["kind"], result["error"]["code"]) == ("failed", "model", "no_backend")
    assert result["mask_sample"]


def test_fail_at_once_by_setting(serve):
    with serve(pool={"wait_s": 0}) as client:
        assert client.post("/process", json=OK).status_code == 503
        assert client.post("/process", json={**OK, "backend_wait_s": 1}).status_code == 200


def test_bodies_without_a_length_are_limited_too(client):
    def chunks():
        yield b'{"domain": "echo", "instance": {"x": "'
        for _ in range(40):
            yield b"y" * 65_536
        yield b'"}}'

    answer = client.post("/process", content=chunks(), headers=JSON)
    assert answer.status_code == 413


def test_known_domains_are_listed_with_plain_names_first_and_the_nearest_is_named(client):
    detail = client.post("/process", json={"domain": "ehco", "instance": {}}).json()["detail"]
    assert "did you mean 'echo'?" in detail
    assert detail.endswith("known: echo, echo/*; not loaded (see `prorl plugins`): lost (prorl-lost 1.0)")
