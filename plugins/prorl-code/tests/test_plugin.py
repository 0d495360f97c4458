from prorl_code import demo
from prorl_code.handler import CodeHandler
from prorl_code.plugin import prorl_agent_handlers, prorl_demos
from prorl_code.rows import read_row
from prorl_code.settings import CodeSettings


def test_the_record():
    [record] = prorl_agent_handlers()
    assert record.name == "code"
    assert isinstance(record.factory(), CodeHandler)
    assert record.settings is CodeSettings
    sources = ["taco", "apps", "codeforces", "livecodebench", "open-r1/codeforces", "PRIME-RL/Eurus-2-RL-Data"]
    assert all(source in record.domains or source.startswith(record.prefixes) for source in sources)


def test_the_demos_rows_are_rows_and_have_a_script():
    [record] = prorl_demos()
    for row in record.rows:
        assert read_row(row).tests
        assert "file_text" in (record.script(row, 0) or "")
        assert "finish" in (record.script(row, 1) or "")
        assert record.script(row, 2) is None
    assert record.rows == demo.ROWS
