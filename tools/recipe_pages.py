# SPDX-License-Identifier: Apache-2.0
"""Pages of docs/recipes/, a published pair each, from docs/recipes/recipes.json.

Each page has the command, what ``mkv-ascend check`` says of it with the default host
(``docs/recipes/answers.json``; ``python tools/recipe_pages.py`` asks again), and what to know of
the pair. Sizes of models are those of tests/data/configs or of the same file.
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
from mkv_ascend.commands.check import lines_of

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "recipes"
CONFIGS = ROOT / "tests" / "data" / "configs"
KNOWN_EVERYWHERE = ("--devices or --device-memory", "the memory of graphs is not counted")
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


def check(recipe: Recipe, models: Mapping[str, str]) -> dict[str, Any]:
    """What ``mkv-ascend check --json`` says, without the names of folders."""
    said = io.StringIO()
    device = ("--json", "--devices", str(max(8, recipe["ranks"])), "--device-memory", "64GiB")
    with contextlib.redirect_stdout(said):
        cli.main(["check", *device, "--", *_checked(recipe, models)])
    found: dict[str, Any] = json.loads(said.getvalue())
    found.pop("models", None)
    return found


def _checked(recipe: Recipe, models: Mapping[str, str]) -> list[str]:
    """The command; of the target alone where a method needs a package that is not here."""
    words = command(recipe, models)
    if recipe["speculative_config"].get("method") == "suffix":
        at = words.index("--speculative-config")
        del words[at : at + 2]
    return words


def answers() -> dict[str, dict[str, Any]]:
    """What check said of each recipe when it was asked last, by slug."""
    text = (FOLDER / "answers.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def ask() -> None:
    """Ask check again of each, with the default host; the pages show what is written then."""
    with folders() as models:
        found = {recipe["slug"]: check(recipe, models) for recipe in recipes()}
    text = json.dumps(found, indent=1, sort_keys=True)
    (FOLDER / "answers.json").write_text(text + "\n", encoding="utf-8")


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
    models = {role: recipe[role] for role in ("target", "draft") if recipe[role]}
    said = "\n".join(lines_of({**answers()[recipe["slug"]], "models": models}))
    lines = [line for line in said.splitlines() if not any(n in line for n in KNOWN_EVERYWHERE)]
    serve = command(recipe)
    at = serve.index("--speculative-config")
    first, second = shlex.join(serve[:at]), shlex.join(serve[at:])
    parts = [
        recipe["know"],
        f"```bash\n{first} \\\n  {second}\n```",
        f"`mkv-ascend check` says of it, for vllm-ascend 0.23.0 on {max(8, recipe['ranks'])} "
        "devices of 64 GiB:",
        "\n".join(["```text", *lines, "```"]),
    ]
    return "\n\n".join(parts) + "\n"


def stub(recipe: Recipe) -> str:
    """A recipe's page before its generated part is written."""
    return f"# {recipe['title']}\n\n<!-- generated: begin -->\n<!-- generated: end -->\n"


if __name__ == "__main__":
    ask()
