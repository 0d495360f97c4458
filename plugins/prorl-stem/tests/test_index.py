import gzip
import json
import sqlite3
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl.api import ConfigError
from prorl_stem.index import Document, Index, build_index, read_documents, reference_index
from prorl_stem.index.store import match_expression
from prorl_stem.search.offline import Offline
from prorl_stem.settings import SearchSettings

DOCUMENTS = [
    Document("https://a.org/iron", "Iron", "Iron melts at 1811 kelvin."),
    Document("https://a.org/gold", "Gold", "Gold melts at 1337 kelvin. It is no iron."),
    Document("https://a.org/cells", "Mitochondria", "Die Zelle: größere Mitochondrien."),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "some.db"
    assert build_index(DOCUMENTS, path) == 3
    return Index(path)


def test_the_best_comes_first(index):
    assert [found.title for found in index.search("melting of iron", 5)] == ["Iron", "Gold"]
    assert index.search("grössere größere", 5)[0].title == "Mitochondria"
    assert len(index.search("kelvin", 1)) == 1
    assert "1811" in index.search("iron", 1)[0].snippet
    assert index.document("https://a.org/gold") == DOCUMENTS[1]
    assert index.document("https://a.org/none") is None
    assert list(index.documents()) == DOCUMENTS
    assert index.count == 3


HOSTILE = [
    '"', "''", "*", "iron*", "NEAR(iron gold)", "title:iron", "iron AND NOT gold", "-iron", "^iron", "{title}: iron",
    "iron\x00gold", "; DROP TABLE documents", "(((", "AND", "OR OR", "\ud7ff", "iron" * 5000, "i " * 5000,
    "", "?!", "🜂",
]  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE)
def test_hostile_queries_are_only_words(index, query):
    assert isinstance(index.search(query, 3), list)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(max_size=80))
def test_no_query_breaks_it(index, query):
    assert len(index.search(query, 3)) <= 3


def test_every_word_is_quoted():
    assert match_expression('NEAR("a* iron) title:x') == '"near" OR "iron" OR "title" OR "x"'
    assert match_expression("what is it") == '"what" OR "is" OR "it"'
    assert match_expression("- * ^") is None


def test_it_is_read_only(index):
    with index._open() as connection, pytest.raises(sqlite3.OperationalError):
        connection.execute("DELETE FROM urls")


def test_many_threads(index):
    found = []
    threads = [threading.Thread(target=lambda: found.append(index.search("iron", 3))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(hits == found[0] for hits in found)


def test_the_first_of_two_with_one_address_stays(tmp_path):
    twice = [DOCUMENTS[0], Document(DOCUMENTS[0].url, "Other", "other"), DOCUMENTS[1]]
    assert build_index(twice, tmp_path / "x.db") == 2
    assert Index(tmp_path / "x.db").document(DOCUMENTS[0].url).title == "Iron"


def test_a_build_that_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "x.db"
    build_index(DOCUMENTS, path)

    def breaking():
        yield DOCUMENTS[0]
        raise ConfigError("line 2")

    with pytest.raises(ConfigError):
        build_index(breaking(), path)
    assert Index(path).count == 3
    assert [file.name for file in tmp_path.iterdir()] == ["x.db"]


def test_what_is_no_index_is_said(tmp_path):
    (tmp_path / "x.db").write_text("no database, but text that is long enough to be looked at" * 20)
    sqlite3.connect(tmp_path / "y.db").close()
    for name in ("x.db", "y.db", "none.db"):
        with pytest.raises(ConfigError, match="prorl stem index"):
            Index(tmp_path / name)


def test_files_and_folders(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.jsonl").write_text('{"text": "first", "title": "T", "url": "https://a.org"}\n\n{"text": "second"}\n')
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "third"}'))
    (tmp_path / "deep" / "c.md").write_text("# The title\n\nfourth")
    (tmp_path / "d.png").write_bytes(b"\x89PNG")
    found = list(read_documents(tmp_path))
    assert [document.text for document in found] == ["first", "second", "third", "# The title\n\nfourth"]
    assert found[0].url == "https://a.org"
    assert (found[3].title, found[3].url) == ("The title", "offline://files/deep/c.md")
    assert len({document.url for document in found}) == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "line 2: not a JSON object"),
        ('{"title": "x"}', "line 2: text must be"),
        ('{"text": "x", "url": 3}', "url"),
    ],
)
def test_a_bad_document_is_named(tmp_path, line, said):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x"}) + "\n" + line)
    with pytest.raises(ConfigError, match=said):
        list(read_documents(tmp_path / "a.jsonl"))
    with pytest.raises(ConfigError, match="no such file"):
        list(read_documents(tmp_path / "none"))


def test_the_corpus_that_comes_along():
    index = reference_index()
    assert index.count > 15_000
    assert "299792458" in index.search("speed of light in vacuum", 1)[0].snippet
    assert "6.62607015e-34" in index.search("Planck constant", 1)[0].snippet
    assert any(found.url == "offline://elements/iron" for found in index.search("melting point of iron", 5))
    assert any(found.title == "glycolysis" for found in index.search("process that breaks down carbohydrates ATP", 5))
    assert reference_index().path == index.path


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        reference_index()


async def test_as_a_backend(index):
    offline = Offline(SearchSettings(index=str(index.path)))
    assert [hit.title for hit in await offline.search("gold", 3)] == ["Gold"]
    assert (await offline.document("https://a.org/iron")).title == "Iron"
    with pytest.raises(ConfigError):
        await Offline(SearchSettings(index="/no/such.db")).search("x", 1)
