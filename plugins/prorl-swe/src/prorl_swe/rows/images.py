"""Which image a row's repository is in: the name the data set gives it, put into a template of the operator's.

In a template ``{image}`` is the image as the data set names it, with its tag
(``swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest``), ``{file}`` the same with ``/``, ``:`` and ``@`` as
``_``, for folders of images, ``{instance_id}`` the row's id as it is, ``{id_s}`` and ``{id_1776}`` the id in lower case
with ``__`` as ``_s_`` and as ``_1776_``, as SWE-Gym and SWE-bench have it in names of images::

    images = "docker://{image}"                           # the default, from Docker Hub
    images = "docker://mirror.example:5000/{image}"       # from a mirror
    images = { swe-gym = "/images/{instance_id}.sif" }    # a folder of SIF files for one kind, the default for the rest
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

from prorl.api import ConfigError
from prorl_swe.rows.fields import bad
from prorl_swe.rows.instance import Kind

Images = str | Mapping[Kind, str]
DEFAULT_IMAGE = "docker://{image}"
PLACES = ("image", "file", "instance_id", "id_s", "id_1776")
PLACE = re.compile(r"\{([^{}]*)\}")
# A reference as registries take it; no scheme, no dots that lead elsewhere.
NAME = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,252}[a-z0-9])?(?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:[._-]{1,2}[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


def check_images(images: Images) -> None:
    """Raises ``ConfigError`` for a kind or a place in a template that there is not."""
    table = {"images": images} if isinstance(images, str) else {f"images.{kind}": text for kind, text in images.items()}
    for field, template in table.items():
        if field != "images" and field.removeprefix("images.") not in get_args(Kind):
            raise ConfigError(f"{field} is not a kind of row; the kinds are {', '.join(get_args(Kind))}")
        unknown = [place for place in PLACE.findall(template) if place not in PLACES]
        if unknown or not template.strip():
            known = ", ".join(f"{{{place}}}" for place in PLACES)
            raise ConfigError(f"{field} = {template!r} must be an image, in which {known} are filled in")


def reference(images: Images, kind: Kind, instance_id: str, name: str) -> str:
    """What the sandbox layer takes. ``name``: the image as the data set names it."""
    template = images if isinstance(images, str) else images.get(kind, DEFAULT_IMAGE)
    lower = instance_id.lower()
    places = {
        "image": name,
        "file": re.sub(r"[/:@]", "_", name),
        "instance_id": instance_id,
        "id_s": lower.replace("__", "_s_"),
        "id_1776": lower.replace("__", "_1776_"),
    }
    return PLACE.sub(lambda found: places.get(found[1], found[0]), template)


def read_image(field: str, value: object) -> str:
    """The name of an image in a registry, with a tag."""
    name = value.removeprefix("docker://").removeprefix("docker.io/") if isinstance(value, str) else ""
    if len(name) > 512 or not NAME.fullmatch(name):
        raise bad(field, "must be the name of an image in a registry, as OWNER/NAME:TAG", value)
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"
