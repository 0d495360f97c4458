"""Answers out of solutions, and the commands."""

import json

import pytest
from click.testing import CliRunner

from prorl_stem.command import command
from prorl_stem.extract.rule import Drawn, NotDrawn, by_rule
from prorl_stem.grading.units import Units

SOLUTION = "Since $E = hf$, we get three point three joules, so 3.3 J it is."


@pytest.fixture(scope="module")
def units():
    return Units()


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"\[ s=\boxed{1.6} \mathrm{~cm} \]", "1.6 cm"),
        (r"=\boxed{9.6} \AA", "9.6 Å"),
        (r"$\boxed{28.71}^{\circ}$", "28.71 °"),
        (r"It is $\boxed{4e33}$ ergs.", "4e33 ergs"),
        (r"=\boxed{7.353e14} s^{-1}", "7.353e14 s^-1"),
        (r"\boxed{0.49} \operatorname{arcsecs}", "0.49 arcsecs"),
        (r"\boxed{5.3e-9} \mathrm{~mol} \mathrm{Bi}_{2} \mathrm{~S}_{3}", "5.3e-9 mol"),
        (r"=\boxed{927.5} /$ kJ/mole", "927.5"),
        (r"There will be \boxed{4.4e7} ferrets on the island in the year 2000.", "4.4e7"),
        (r"\boxed{100} \%$ complete", r"100 \%"),
        (r"\boxed{2.75e11} \mathrm{~cm}=\boxed{2.75e11}", "2.75e11"),
        (r"so \boxed{\frac{K-1}{L}} m", r"\frac{K-1}{L}"),
        (r"\boxed{4 \mathrm{~J}} in all", r"4 \mathrm{~J}"),
        ("Long reasoning.\nFinal answer: 3 m/s.", "3 m/s"),
        ("The answer is $x^2$.", "x^2"),
    ],
)
def test_by_rule(units, solution, answer):
    drawn = by_rule(solution, units)
    assert isinstance(drawn, Drawn)
    assert drawn.answer == answer


@pytest.mark.parametrize(
    ("solution", "reason"),
    [
        ("", "no box"),
        ("The proof is left to the reader.", "no box"),
        (r"(a) \boxed{1}. Therefore (b) is \boxed{2}.", "several boxes"),
        (r"\boxed{ }", "empty"),
        (r"\boxed{" + "x" * 400 + "}", "more than 300"),
    ],
)
def test_what_no_rule_tells(units, solution, reason):
    drawn = by_rule(solution, units)
    assert isinstance(drawn, NotDrawn)
    assert reason in drawn.reason


def run(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


ROWS = (
    {"problem": "How long?", "matched_solution": r"It is \boxed{1.6} \mathrm{~cm}."},
    {"problem": "How much?", "matched_solution": SOLUTION},
    {"problem": "Given", "answer": "3"},
    {"problem": "Nothing", "matched_solution": ""},
    {"problem": "Symbols", "matched_solution": r"\boxed{\%}"},
)


def test_extract_draws_by_rule_and_reports_the_rest(tmp_path):
    out = tmp_path / "out.jsonl"
    result = run("extract", write(tmp_path / "in.jsonl", *ROWS), "--out", out, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert (report["rows"], report["drawn"]) == (5, {"box": 1, "given": 1})
    assert [entry["line"] for entry in report["undrawn"]] == [2, 4, 5]
    assert "no box" in report["undrawn"][0]["reason"]
    assert "matched_solution must be text" in report["undrawn"][1]["reason"]
    assert "empty" in report["undrawn"][2]["reason"]
    assert [(row["answer"], row.get("answer_way")) for row in read(out)] == [("1.6 cm", "box"), ("3", None)]
    shown = run("extract", tmp_path / "in.jsonl", "--out", out).output
    assert "3 not drawn" in shown
    assert "line 4: matched_solution" in shown


def test_a_file_may_be_replaced_by_its_own_answers(tmp_path):
    rows = write(tmp_path / "in.jsonl", *ROWS[:3])
    assert run("extract", rows, "--out", rows).exit_code == 0
    assert len(read(rows)) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["in.jsonl"]


def answering(peer, text):
    def play(asked):
        head = asked.json["messages"][0]["content"].split("ANSWER ", 1)[1].split(":", 1)[0]
        content = text.replace("HEAD", f"ANSWER {head}:")
        return peer.json({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]})

    return peer(play)


@pytest.mark.parametrize(
    ("said", "drawn", "reason"),
    [
        ("I read.\nHEAD 3.3 J", "3.3 J", None),
        ("HEAD 4.4 J", None, "does not stand in the solution"),
        ("HEAD NONE", None, "finds no single answer"),
    ],
)
def test_extract_asks_a_model_where_no_rule_tells(tmp_path, peer, said, drawn, reason):
    there = answering(peer, said)
    out = tmp_path / "out.jsonl"
    model = ("--llm-url", f"{there.url}/v1", "--llm-model", "m")
    result = run("extract", write(tmp_path / "in.jsonl", ROWS[1]), "--out", out, *model, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    if drawn is None:
        assert reason in report["undrawn"][0]["reason"]
        assert read(out) == []
    else:
        assert read(out)[0]["answer"] == drawn
        assert report["drawn"] == {"llm": 1}


def test_extract_says_when_the_model_is_down(tmp_path, peer, no_waiting):
    there = peer(peer.Reply(500))
    model = ("--llm-url", there.url, "--llm-model", "m")
    result = run("extract", write(tmp_path / "in.jsonl", ROWS[1]), "--out", tmp_path / "o", *model, "--json")
    assert "HTTP 500" in json.loads(result.output)["undrawn"][0]["reason"]


def test_every_shared_solution_gives_an_answer(tmp_path, shared_file):
    out = tmp_path / "out.jsonl"
    result = run("extract", shared_file("stem_scp_form.jsonl"), "--out", out, "--json")
    assert json.loads(result.output) == {"rows": 91, "drawn": {"box": 91}, "undrawn": []}
    assert run("check", out).output == "every row is good\n"


@pytest.mark.parametrize("name", ["stem_mcqa.jsonl", "stem_physics.jsonl"])
def test_every_shared_row_is_good(shared_file, name):
    assert run("check", shared_file(name)).exit_code == 0


def test_check_names_line_and_field(tmp_path):
    rows = write(tmp_path / "in.jsonl", ROWS[2], {"problem": "", "answer": "3"}, {"problem": "?", "answer": "!"})
    result = run("check", rows)
    assert result.exit_code == 1
    assert "line 2: problem must be text" in result.output
    assert "line 3: the gold answer is empty" in result.output
    assert [entry["line"] for entry in json.loads(run("check", rows, "--json").output)] == [2, 3]


def test_index_and_search(tmp_path):
    source = write(tmp_path / "in.jsonl", {"text": "Iron melts at 1811 K.", "title": "Iron", "url": "https://a.org"})
    made = run("index", source, "--out", tmp_path / "x.db")
    assert made.exit_code == 0, made.output
    assert "1 documents" in made.output
    assert "https://a.org" in run("search", "iron", "--index", tmp_path / "x.db").output
    assert "nothing found" in run("search", "gold", "--index", tmp_path / "x.db").output
    both = run("index", source, "--reference", "--out", tmp_path / "y.db")
    assert int(both.output.split(": ")[1].split()[0]) > 15_000
    assert "299792458" in run("search", "speed of light in vacuum").output
    empty = run("index", write(tmp_path / "none.jsonl"), "--out", tmp_path / "z.db")
    assert "no document" in str(empty.exception)
    assert not (tmp_path / "z.db").exists()
