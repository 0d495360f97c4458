"""Results compared with what a tokenizer makes of their tokens."""

from __future__ import annotations

import json

from prorl.testing.bytebpe import write_tokenizer


def test_texts(results, verify, tmp_path, forge):
    write_tokenizer(tmp_path / "tokenizer")
    status, out = verify(results, "--tokenizer", tmp_path / "tokenizer", "--json")
    assert status == 0, out
    texts = json.loads(out)["texts"]
    assert (texts["replies"], texts["replies_that_would_encode_otherwise"]) == (6, 0)
    forge.another_encoding(results[0])
    results[1].trajectory.turns[-1].text = "It is 41."
    for result in results:
        forge.certify_anew(result)
    status, out = verify(results, "--tokenizer", tmp_path / "tokenizer", "--json")
    report = json.loads(out)
    assert status == 1
    assert report["texts"]["replies_that_would_encode_otherwise"] == 1
    assert [(each["line"], each["findings"][0]["code"]) for each in report["wrong"]] == [(2, "other_text")]


def test_texts_of_engines_that_take_messages(results, verify, tmp_path, forge):
    """They give text as they see fit: without the calls, without thinking. Nobody lied."""
    write_tokenizer(tmp_path / "tokenizer")
    trajectory = results[1].trajectory
    trajectory.tokenizer, trajectory.turns[1].text = None, ""
    forge.certify_anew(results[1])
    status, out = verify(results, "--tokenizer", tmp_path / "tokenizer", "--json")
    assert status == 0, out
    assert json.loads(out)["texts"]["replies_not_compared"] == 2
    status, out = verify(results[1:2], "--tokenizer", tmp_path / "tokenizer")
    assert status == 1
    assert "no text was compared" in out
