"""The API by the paper's names, the jobs beside it, and what happens when jobs, clients or servers go away."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import pytest

from prorl.wire import JobEvent, JobView, PluginReport, RolloutResult, ServiceStatus, Switched

OK = {"domain": "echo", "instance": {}}


def waiting(job_id: str, **fields: object) -> dict[str, object]:
    return {"domain": "echo", "instance": {"wait": True}, "job_id": job_id, **fields}


def read_events(lines) -> list[tuple[str, str, JobEvent]]:
    found, fields = [], {}
    for line in lines:
        if line == "" and fields:
            found.append((fields["id"], fields["event"], msgspec.json.decode(fields["data"], type=JobEvent)))
            fields = {}
        elif ": " in line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
    return found


def test_process_returns_a_result_whatever_happened(client):
    good = msgspec.json.decode(client.post("/process", json=OK).content, type=RolloutResult)
    assert (good.status, good.reward, good.resolved) == ("completed", 1.0, True)
    answer = client.post("/process", json={"domain": "echo", "instance": {"fail": "no luck"}})
    assert answer.status_code == 200
    bad = msgspec.json.decode(answer.content, type=RolloutResult)
    assert (bad.status, bad.stage, bad.error.kind, bad.mask_sample) == ("failed", "run", "task", True)


def test_data_source_picks_the_handler(client):
    answer = client.post("/process", json={"instance": {"data_source": "echo/anything"}})
    assert answer.json()["handler"] == "echo"


def test_msgpack_both_ways(client):
    headers = {"content-type": "application/msgpack", "accept": "application/msgpack"}
    answer = client.post("/process", content=msgspec.msgpack.encode(OK), headers=headers)
    assert answer.headers["content-type"] == "application/msgpack"
    assert msgspec.msgpack.decode(answer.content, type=RolloutResult).status == "completed"
    answer = client.get("/status", headers=headers)
    assert msgspec.msgpack.decode(answer.content, type=ServiceStatus).accepting


def test_jobs_without_a_long_connection(client, until):
    answer = client.post("/jobs", json={**OK, "job_id": "j1", "group_id": "g"})
    assert answer.status_code == 202
    assert answer.headers["location"] == "/jobs/j1"
    until(lambda: client.get("/jobs/j1").json()["state"] == "completed")
    view = msgspec.json.decode(client.get("/jobs/j1").content, type=JobView)
    assert (view.job_id, view.group_id, view.handler, view.result.reward) == ("j1", "g", "echo", 1.0)
    listed = client.get("/jobs", params={"state": "completed", "group_id": "g", "limit": 5}).json()
    assert [job["job_id"] for job in listed] == ["j1"]
    assert "result" not in listed[0]


def test_the_same_id_attaches_or_conflicts(client):
    body = waiting("twin")
    with ThreadPoolExecutor(3) as threads:
        assert client.post("/jobs", json=body).status_code == 202
        attached = [threads.submit(client.post, "/process", json=dict(reversed(body.items()))) for _ in range(2)]
        conflict = client.post("/process", json={**body, "priority": 1})
        assert conflict.status_code == 409
        assert conflict.json()["extra"]["job_id"] == "twin"
        assert client.post("/cancel", json={"job_id": "twin"}).json() == {"cancelled": ["twin"], "unknown": []}
        results = [each.result(30).json() for each in attached]
    assert [result["status"] for result in results] == ["cancelled", "cancelled"]
    late = client.post("/process", json=body)
    assert late.json() == results[0]
    assert client.post("/process", json={**body, "priority": 1}).status_code == 409


def test_cancel_a_group_and_name_what_is_unknown(client):
    for number in range(3):
        client.post("/jobs", json=waiting(f"g-{number}", group_id="mates"))
    answer = client.post("/cancel", json={"group_id": "mates", "job_ids": ["nobody"]}).json()
    assert (sorted(answer["cancelled"]), answer["unknown"]) == (["g-0", "g-1", "g-2"], ["nobody"])


def test_a_client_that_goes_away_cancels_nothing_unless_asked(client, until):
    for job_id, asks in (("stays", False), ("goes", True)):
        with pytest.raises(httpx.ReadTimeout):
            client.post("/process", json=waiting(job_id, cancel_on_disconnect=asks), timeout=0.3)
    until(lambda: client.get("/jobs/goes").json()["state"] == "cancelled")
    assert client.get("/jobs/stays").json()["state"] == "running"
    client.post("/cancel", json={"job_id": "stays"})


def test_a_job_whose_connection_broke_is_run_anew_when_it_is_sent_again(client, until):
    with pytest.raises(httpx.ReadTimeout):
        client.post("/process", json=waiting("broke", cancel_on_disconnect=True), timeout=0.3)
    until(lambda: client.get("/jobs/broke").json()["state"] == "cancelled")
    client.post("/jobs", json=waiting("broke", cancel_on_disconnect=True))
    until(lambda: client.get("/jobs/broke").json()["state"] == "running")
    client.post("/cancel", json={"job_id": "broke"})
    until(lambda: client.get("/jobs/broke").json()["state"] == "cancelled")
    client.post("/jobs", json=waiting("broke", cancel_on_disconnect=True))
    assert client.get("/jobs/broke").json()["state"] == "cancelled"  # somebody gave it up


def test_cancel_on_disconnect_answers_when_nobody_goes_away(client):
    assert client.post("/process", json={**OK, "cancel_on_disconnect": True}).json()["status"] == "completed"


def test_events_in_order_and_from_where_one_left_off(client):
    body = {"domain": "echo", "instance": {"events": 3}, "job_id": "eventful"}
    client.post("/process", json=body)
    with client.stream("GET", "/jobs/eventful/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = read_events(answer.iter_lines())
    kinds = [kind for _, kind, _ in events]
    assert kinds[0] == "job.accepted"
    assert kinds[-1] == "job.ended"
    assert kinds.count("tick") == 3
    assert [event.seq for *_, event in events] == list(range(1, len(events) + 1))
    assert [number for number, *_ in events] == [str(event.seq) for *_, event in events]
    with client.stream("GET", "/jobs/eventful/events", headers={"last-event-id": "4"}) as answer:
        assert read_events(answer.iter_lines()) == events[4:]


def test_events_come_while_the_job_runs_and_the_line_is_kept_alive(serve):
    with serve(server={"sse_keep_alive_s": 0.05}) as client:
        client.post("/jobs", json=waiting("live"))
        with client.stream("GET", "/jobs/live/events") as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line.startswith("event:")) == "event: job.accepted"
            assert next(line for line in lines if line.startswith(":"))
            client.post("/cancel", json={"job_id": "live"})
            assert "event: job.ended" in list(lines)


def test_start_twice_and_stop_while_jobs_run(serve, until):
    with serve() as client, ThreadPoolExecutor(2) as threads:
        assert client.post("/start").json()["changed"] is False
        jobs = [threads.submit(client.post, "/process", json=waiting(f"s{n}")) for n in range(2)]
        until(lambda: client.get("/status").json()["jobs"]["running"] == 2)
        stopped = msgspec.json.decode(client.post("/stop").content, type=Switched)
        assert (stopped.changed, stopped.accepting, stopped.jobs["cancelled"]) == (True, False, 2)
        assert [job.result(30).json()["status"] for job in jobs] == ["cancelled", "cancelled"]
        assert client.post("/stop").json()["changed"] is False
        refused = client.post("/process", json=OK)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert client.post("/process", json=waiting("s0")).json()["status"] == "cancelled"  # attaching still works
        assert client.post("/start").json()["changed"] is True
        assert client.post("/process", json=OK).json()["status"] == "completed"


def test_going_down_delivers_results(serve, until):
    answers: list[httpx.Response] = []

    def ask(url: httpx.URL) -> None:
        answers.append(httpx.post(f"{url}/process", json=waiting("last"), timeout=60))

    with serve() as client:
        asking = threading.Thread(target=ask, args=(str(client.base_url).rstrip("/"),))
        asking.start()
        until(lambda: client.get("/status").json()["jobs"]["running"] == 1)
    asking.join(30)
    assert answers[0].json()["status"] == "cancelled"


def test_a_handler_that_blocks_the_loop_is_named(serve, until):
    with serve(pipeline={"stall_s": 0.1}) as client:
        client.post("/process", json={"domain": "echo", "instance": {"block_s": 1.5}})
        until(lambda: client.get("/status").json()["loop_stalls"].get("echo", 0) >= 1)


def test_many_at_once_and_one_failing_kind_disturbs_none(client):
    def ask(number: int) -> tuple[int, str]:
        instance = {"fail": "x"} if number % 4 == 0 else {}
        answer = client.post("/process", json={"domain": "echo", "instance": instance, "job_id": f"many-{number}"})
        return answer.status_code, answer.json()["status"]

    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(ask, range(200)))
    assert answers == [(200, "failed" if number % 4 == 0 else "completed") for number in range(200)]


def test_health_and_plugins(client):
    assert client.get("/health").json()["status"] == "ok"
    (report,) = msgspec.json.decode(client.get("/plugins").content, type=list[PluginReport])
    assert (report.state, report.distribution) == ("import-failed", "prorl-lost")


def test_openapi_documents_the_real_bodies(client):
    schema = client.get("/schema/openapi.json").json()
    body = schema["paths"]["/process"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/JobRequest"}
    assert "instance" in schema["components"]["schemas"]["JobRequest"]["properties"]
    assert [each["name"] for each in schema["paths"]["/jobs"]["get"]["parameters"]] == ["state", "group_id", "limit"]
    references = {
        part.split('"')[0].removeprefix("#/components/schemas/") for part in json.dumps(schema).split('"$ref": "')[1:]
    }
    assert references <= set(schema["components"]["schemas"])
    paths = {"/process", "/cancel", "/add_llm_server", "/clear_llm_server", "/start", "/stop", "/status", "/jobs"}
    assert paths <= set(schema["paths"])


def test_the_schemas_page_needs_nothing_from_elsewhere(client):
    page = client.get("/schema")
    assert page.headers["content-type"].startswith("text/html")
    assert "POST /process" in page.text
    assert "/schema/openapi.json" in page.text
    assert "//" not in page.text.replace("<!doctype", "")
    assert client.get("/schema/openapi.yaml").status_code == 200
    assert client.get("/schema/swagger").status_code == 404
