"""Rows of public data sets, read and checked."""

from prorl_swe.rows.allowed import check_sources
from prorl_swe.rows.datasets import KindSetting, detect, read_row
from prorl_swe.rows.images import DEFAULT_IMAGE, Images, check_images
from prorl_swe.rows.instance import (
    CloneSource,
    ImageSource,
    Instance,
    Kind,
    Match,
    Runner,
    SdistSource,
    Source,
)

__all__ = [
    "DEFAULT_IMAGE",
    "CloneSource",
    "ImageSource",
    "Images",
    "Instance",
    "Kind",
    "KindSetting",
    "Match",
    "Runner",
    "SdistSource",
    "Source",
    "check_images",
    "check_sources",
    "detect",
    "read_row",
]
