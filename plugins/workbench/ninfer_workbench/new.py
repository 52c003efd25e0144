"""``ninfer new``: write a skeleton distribution from the templates beside this module."""

from __future__ import annotations

import re
import shlex
import sys
from argparse import Namespace
from pathlib import Path
from string import Template

from ninfer_core import __version__
from ninfer_core.api import API_VERSION, ConfigError

TEMPLATES = Path(__file__).with_name("templates")
PREFIXES = {
    "model-pack": "ninfer_pack_", "hardware-profile": "ninfer_profile_", "plugin": "ninfer_plugin_",
}


def run(arguments: Namespace) -> int:
    """Write the skeleton and say what to do with it."""
    root = write_skeleton(arguments.kind, arguments.name, arguments.dir)
    command = f"{shlex.quote(sys.executable)} -m pip install -e {shlex.quote(str(root))}"
    print(f"wrote {root}\nnext: {command}, then ninfer conformance {root.name}")
    return 0


def write_skeleton(kind: str, name: str, folder: Path) -> Path:
    """Write the distribution ``folder/NAME``; nothing that exists is touched.

    :return: its folder, whose name is the plugin's name (dashes become underscores).
    """
    name = name.replace("-", "_")
    root = folder / name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError("unusable name", where=name, why="wanted: a-z, 0-9, _ and a first letter")
    if root.exists():
        raise ConfigError("will not overwrite", where=str(root), fix="choose another NAME or --dir")
    package = PREFIXES[kind] + name
    words = {
        "name": name, "title": "".join(part.capitalize() for part in name.split("_")),
        "package": package, "distribution": package.replace("_", "-"),
        "api": f"({API_VERSION.major}, {API_VERSION.minor})", "core": __version__,
    }
    for template in sorted((TEMPLATES / kind).rglob("*.tmpl")):
        relative = str(template.relative_to(TEMPLATES / kind).with_suffix(""))
        path = root / relative.replace("PACKAGE", package)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = Template(template.read_text(encoding="utf-8")).substitute(words)
        path.write_text(text, encoding="utf-8")
    return root
