"""Installs the entry points of bluecomm, as far as Python looks for them."""

from __future__ import annotations

import configparser
from pathlib import Path

from tests.support.launch import ROOT

AUTOLOAD = "bluecomm_autoload.py"


def install_entry_points(folder: Path) -> Path:
    """Fill a new folder that, on ``PYTHONPATH``, has bluecomm's metadata.

    It also has the module that torch imports, but not the packages.
    """
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    points = configparser.ConfigParser(delimiters="=")
    for group, lines in config["options.entry_points"].items():
        points[group] = dict(
            line.split(" = ") for line in lines.splitlines() if line.strip()
        )
    info = folder / "bluecomm-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: bluecomm\nVersion: 0\n"
    )
    with (info / "entry_points.txt").open("w") as file:
        points.write(file)
    (folder / AUTOLOAD).symlink_to(ROOT / AUTOLOAD)
    return folder
