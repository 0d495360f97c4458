"""The file of results survives what happens to files: a torn line, a second writer, a file of something else."""

from __future__ import annotations

import msgspec
import pytest

from prorl.api import ConfigError
from prorl.cli.rollout.results import Asked, ResultFile
from prorl.cli.rollout.rows import Place
from prorl.wire import Budgets, RolloutResult, SamplingParams, Segment, Trajectory, VersionSpan


def result(job_id: str) -> RolloutResult:
    segment = Segment(tokens=[1, 2], logprobs=[None, -0.5], loss_mask=[0, 1], versions=[VersionSpan("", 2)])
    trajectory = Trajectory(segments=[segment])
    return RolloutResult(job_id=job_id, status="completed", stage="eval", handler="h", trajectory=trajectory)


def plain(line: RolloutResult) -> RolloutResult:
    return msgspec.convert(msgspec.to_builtins(line), RolloutResult)


def write(path, *job_ids: str) -> None:
    with ResultFile(path) as file:
        for job_id in job_ids:
            file.append(result(job_id))


def ids(path) -> list[str]:
    with ResultFile(path) as file:
        return [each.job_id for each in file.earlier()]


def test_what_was_written_is_there(tmp_path):
    path = tmp_path / "out.jsonl"
    assert ids(path) == []
    write(path, "a", "b")
    with ResultFile(path) as file:
        assert [plain(each) for each in file.earlier()] == [result("a"), result("b")]
        file.append(result("c"))
    assert ids(path) == ["a", "b", "c"]


@pytest.mark.parametrize("kept", range(1, 40, 3))
def test_a_torn_last_line_is_cut_off_and_the_next_one_is_whole(tmp_path, kept):
    path = tmp_path / "out.jsonl"
    write(path, "a", "b")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:kept])
    with ResultFile(path) as file:
        assert [each.job_id for each in file.earlier()] == ["a", "b"]
        file.append(result("c"))
    assert ids(path) == ["a", "b", "c"]
    assert path.read_bytes().startswith(whole)


def test_a_last_line_that_only_lost_its_end_counts(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, "a", "b")
    path.write_bytes(path.read_bytes()[:-1])
    with ResultFile(path) as file:
        assert [each.job_id for each in file.earlier()] == ["a", "b"]
        file.append(result("c"))
    assert ids(path) == ["a", "b", "c"]


def test_a_file_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\nmore\n")
    with ResultFile(path) as file, pytest.raises(ConfigError, match=r"notes\.txt, line 1 is not a rollout result"):
        list(file.earlier())
    assert path.read_text() == "dear diary\nmore\n"


def test_two_runs_cannot_write_one_file(tmp_path):
    path = tmp_path / "out.jsonl"
    with ResultFile(path), pytest.raises(ConfigError, match="another run"), ResultFile(path):
        pass


def test_a_place_where_nothing_can_be_written(tmp_path):
    with pytest.raises(ConfigError, match=r"--out .*no/out\.jsonl: the folder .*no does not exist"):
        ResultFile(tmp_path / "no" / "out.jsonl").__enter__()
    with pytest.raises(ConfigError, match=r"--out .*cannot be written: Is a directory"):
        ResultFile(tmp_path).__enter__()


def test_lines_are_plain_results(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, "a")
    assert msgspec.json.decode(path.read_bytes(), type=RolloutResult) == result("a")


def test_a_line_says_which_row_it_is_of_and_how_it_was_asked_for(tmp_path):
    path = tmp_path / "out.jsonl"
    hot = Asked(domain="d", sampling_params=SamplingParams(temperature=0.7), settings={"turns": 3})
    with ResultFile(path) as file:
        file.append(result("a"), row=Place(line=3, sample=1), asked=hot)
    assert msgspec.json.decode(path.read_bytes())["row"] == {"line": 3, "sample": 1}
    with ResultFile(path) as file:
        [line] = file.earlier()
    assert line.asked == hot
    assert hot.differences(line.asked) == []
    assert Asked(domain="d", budgets=Budgets(run_s=5)).differences(hot) == ["temperature", "run_s", "turns"]
