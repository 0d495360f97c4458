"""Definition templates: what may be in them, what they may see, how they are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl.api import ConfigError
from prorl.sandbox.images.recipe import TEMPLATES, Recipe, render


@pytest.fixture
def template(tmp_path):
    def write(text: str, name: str = "x.def.j2") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


HEAD = "Bootstrap: localimage\nFrom: {{ base }}\n"


def test_a_template_becomes_a_definition(template) -> None:
    path = template(HEAD + "%post\n    echo {{ what | quote }}\n")
    definition = render(Recipe(template=path, variables={"base": "/b.sif", "what": "a 'b'; rm -rf /"}))
    assert definition.text == "Bootstrap: localimage\nFrom: /b.sif\n%post\n    echo 'a '\"'\"'b'\"'\"'; rm -rf /'\n"
    assert (definition.bootstrap, definition.base, definition.folder) == ("localimage", "/b.sif", Path(path).parent)


def test_a_template_may_build_upon_one_beside_it(template) -> None:
    template(HEAD + "%post\n    true\n{% block more %}{% endblock %}", "base.def.j2")
    path = template("{% extends 'base.def.j2' %}{% block more %}    echo more{% endblock %}")
    assert render(Recipe(template=path, variables={"base": "b"})).text.endswith("true\n    echo more")


@pytest.mark.parametrize(
    ("text", "variables", "message"),
    [
        (HEAD, {}, r"x\.def\.j2 needs a variable it was not given: 'base' is undefined \(it has: base\)"),
        (HEAD, {"base": "b", "bass": "c"}, "has no variable bass; it has: base"),
        (HEAD, {"base": "b\n%setup\nrm -rf /"}, "base holds a line break"),
        (HEAD, {"base": "b\u2028"}, "base holds a line break"),
        (HEAD, {"base": "b", "cache": "c"}, "cannot be the name of a variable"),
        (HEAD + "{{ base.__class__.__mro__ }}", {"base": "b"}, "SecurityError"),
        (HEAD + "{% for %}", {"base": "b"}, "TemplateSyntaxError"),
        (HEAD + "{% include '/etc/passwd' %}", {"base": "b"}, "TemplateNotFound"),
        (HEAD + "{% include '../secret' %}", {"base": "b"}, "TemplateNotFound"),
        (HEAD + "{{ 1 / 0 }}", {"base": "b"}, "ZeroDivisionError"),
        ("%post\n    Bootstrap: {{ base }}\n", {"base": "b"}, "no line `Bootstrap"),
    ],
)
def test_what_cannot_be_rendered_says_why(template, text: str, variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        render(Recipe(template=template(text), variables=variables))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonesuch", "known: default, qemu-gui"),
        ("relative/x.def.j2", "absolute path"),
        ("/etc/passwd", "ends in"),
        ("/no/such/x.def.j2", "No such file"),
        ("../templates/default", "absolute path"),
    ],
)
def test_a_template_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        render(Recipe(template=name))


def test_a_template_that_anybody_may_write_is_not_run(template) -> None:
    path = template(HEAD)
    Path(path).chmod(0o666)
    with pytest.raises(ConfigError, match="chmod o-w"):
        render(Recipe(template=path, variables={"base": "b"}))


def test_the_default_template() -> None:
    text = render(Recipe(variables={"base": "debian:12", "packages": "git make", "pip": "pytest"})).text
    assert text.startswith("Bootstrap: docker\nFrom: debian:12\n")
    assert "packages='git make'\n" in text
    assert "pip=pytest\n" in text
    local = render(Recipe(variables={"base": "/images/base.sif", "bootstrap": "localimage"}))
    assert (local.bootstrap, local.base) == ("localimage", "/images/base.sif")


def test_the_machine_for_gui_tasks_is_only_another_template() -> None:
    definition = render(Recipe(template="qemu-gui", variables={"disk": "/images/ubuntu.qcow2", "cpus": "4"}))
    assert (definition.bootstrap, definition.base) == ("docker", "debian:bookworm-slim")
    assert "    /images/ubuntu.qcow2 /machine/disk.qcow2\n" in definition.text
    assert "-smp 4 \\\n" in definition.text
    with pytest.raises(ConfigError, match="'disk' is undefined"):
        render(Recipe(template="qemu-gui"))


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.def.j2")), ids=lambda path: path.name)
def test_no_shipped_template_runs_anything_on_the_host(path) -> None:
    assert "%setup" not in path.read_text()
    assert "%pre" not in path.read_text()


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(lambda n: n not in ("cache", "lock")), st.text()
    ),
    st.sampled_from(["scratch", "versioned", "lock"]),
    st.lists(st.text(min_size=1).map(lambda name: f"/{name}"), max_size=2),
)
def test_a_recipe_is_the_same_as_text(variables, cache, lock) -> None:
    recipe = Recipe(template="/a/b c.def.j2", variables=variables, cache=cache, lock=tuple(lock))
    assert Recipe.parse(recipe.reference) == recipe


@pytest.mark.parametrize(
    ("reference", "message"),
    [("def:/a.def.j2?x", "name=value"), ("def:/a.def.j2?cache=never", "scratch, versioned, lock")],
)
def test_a_reference_that_makes_no_sense(reference: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe.parse(reference)
