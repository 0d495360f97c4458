"""Paths out of patches: which files a patch touches, and which paths may be used at all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_swe.rows.paths import patched_files, path_problem


def test_files_of_a_patch_are_those_in_headers_only():
    patch = (
        'diff --git "a/t\\303\\251st.py" "b/t\\303\\251st.py"\n--- "a/t\\303\\251st.py"\n+++ "b/t\\303\\251st.py"\n'
        "@@ -1,2 +1,3 @@\n a\n--- a/not_a_file.py\n+++ b/nor_this.py\n+x\n"
        "diff --git a/old name.py b/new name.py\nsimilarity index 100%\n"
        "rename from old name.py\nrename to new name.py\n"
        "diff --git a/i.png b/i.png\nnew file mode 100644\nindex 0000000..1111111\nGIT binary patch\nliteral 0\n"
        "HcmV?d00001\n"
    )
    assert patched_files(patch) == ("tést.py", "old name.py", "new name.py", "i.png")


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("a/b.py", True),
        ("..a/b", True),
        ("", False),
        ("/a", False),
        ("a/../b", False),
        ("a//b", False),
        ("./a", False),
        ("a/.GIT/config", False),
        ("a\nb", False),
        ("a" * 2000, False),
    ],
)
def test_paths_that_may_be_used(path, good):
    assert (path_problem(path) is None) == good


@given(st.text(max_size=2000))
@settings(deadline=None)
def test_no_text_upsets_the_reader_of_patches(text):
    for path in patched_files(text):
        path_problem(path)
