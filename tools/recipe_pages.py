# SPDX-License-Identifier: Apache-2.0
"""Pages of docs/recipes/, a published pair each, from docs/recipes/recipes.json.

Each page has the command, what ``mkv-ascend check`` says of it now with the default host, and what
to know of the pair. Sizes of models are those of tests/data/configs or of the same file.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkv_ascend import cli

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "recipes"
CONFIGS = ROOT / "tests" / "data" / "configs"
DEVICE = ("--devices", "8", "--memory", "64GiB")
KNOWN_EVERYWHERE = ("there is no NPU here", "the memory of graphs is not counted")
"""Notes that every page would have."""

Recipe = Mapping[str, Any]


def read() -> dict[str, Any]:
    """``models`` and ``recipes`` of the file."""
    found: dict[str, Any] = json.loads((FOLDER / "recipes.json").read_text(encoding="utf-8"))
    return found


def recipes() -> list[Recipe]:
    found: list[Recipe] = read()["recipes"]
    return found


def command(recipe: Recipe, folders: Mapping[str, str] | None = None) -> list[str]:
    """The words of ``vllm serve``: with names of repositories, or with folders by configuration."""
    target, spec = recipe["target"], dict(recipe["speculative_config"])
    if folders is not None:
        target = folders[recipe["target_config"]]
        if recipe["draft"]:
            spec["model"] = folders[recipe["draft_config"]]
    ranks = [] if recipe["ranks"] == 1 else ["--tensor-parallel-size", str(recipe["ranks"])]
    asked = ["--speculative-config", json.dumps(spec)]
    return ["vllm", "serve", target, *ranks, *asked, *recipe["options"]]


@contextlib.contextmanager
def folders() -> Iterator[dict[str, str]]:
    """Name of a configuration -> a folder with its config.json."""
    found = {path.parent.name: str(path.parent) for path in CONFIGS.glob("*/config.json")}
    with tempfile.TemporaryDirectory() as place:
        for name, values in read()["models"].items():
            folder = Path(place) / name
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
            found[name] = str(folder)
        yield found


def check(recipe: Recipe, models: Mapping[str, str]) -> tuple[int, str]:
    """Exit status and words of ``mkv-ascend check``."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = cli.main(["check", *DEVICE, "--", *command(recipe, models)])
    return status, said.getvalue()


def table() -> str:
    """All recipes, for the first page."""
    lines = ["| target | draft | method | K | devices |", "| --- | --- | --- | --- | --- |"]
    for recipe in recipes():
        spec = recipe["speculative_config"]
        draft = f"`{recipe['draft']}`" if recipe["draft"] else "-"
        lines.append(
            f"| [`{recipe['target']}`]({recipe['slug']}.md) | {draft} | "
            f"{spec.get('method', 'draft_model')} | {spec['num_speculative_tokens']} | "
            f"{recipe['ranks']} |"
        )
    return "\n".join(lines) + "\n"


def page(recipe: Recipe) -> str:
    """What stands between the marks of a recipe's page."""
    with folders() as models:
        _, said = check(recipe, models)
        for role in ("target", "draft"):
            if recipe[role]:
                # A predictor of the target's own is named by the target's folder.
                said = said.replace(models[recipe[f"{role}_config"]], recipe[role])
    lines = [line for line in said.splitlines() if not any(n in line for n in KNOWN_EVERYWHERE)]
    serve = command(recipe)
    at = serve.index("--speculative-config")
    first, second = shlex.join(serve[:at]), shlex.join(serve[at:])
    parts = [
        recipe["know"],
        f"```bash\n{first} \\\n  {second}\n```",
        "`mkv-ascend check` says of it, for vllm-ascend 0.23.0 on 8 devices of 64 GiB (without the "
        "weights at hand):",
        "\n".join(["```text", *lines, "```"]),
    ]
    return "\n\n".join(parts) + "\n"


def stub(recipe: Recipe) -> str:
    """A recipe's page before its generated part is written."""
    return f"# {recipe['title']}\n\n<!-- generated: begin -->\n<!-- generated: end -->\n"
