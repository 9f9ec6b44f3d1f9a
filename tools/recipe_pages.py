# SPDX-License-Identifier: Apache-2.0
"""Pages of docs/recipes/, a published pair each, from docs/recipes/recipes.json.

Each page has the command, what ``mkv-ascend check`` says of it with the first host that it names
(``docs/recipes/answers.json``; ``python tools/recipe_pages.py`` asks again, with the installed
one), and what to know of the pair. A model there has its published config.json, or is another one
in another format: without its ``quantization_config``, and with ModelSlim's description where rules
say what is quantised. Those of tests/data/configs are used too.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import itertools
import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from hosts import HOSTS
from mkv_ascend import cli
from mkv_ascend.commands.check import lines_of

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "recipes"
CONFIGS = ROOT / "tests" / "data" / "configs"
DESCRIPTION = "quant_model_description.json"
ROOTS = (
    *("model.layers", "mtp.layers", "mtp"),
    *("model.language_model.layers", "language_model.model.layers"),
)
"""Where published checkpoints have their layers."""
MLP = ("gate_proj", "up_proj", "down_proj")
PARTS = (
    *(f"self_attn.{n}_proj" for n in ("q", "k", "v", "o", "q_a", "q_b", "kv_b")),
    "self_attn.kv_a_proj_with_mqa",
    *(f"self_attn.{n}" for n in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")),
    *(f"self_attn.{part}compressor.{n}" for part in ("", "indexer.") for n in ("wkv", "wgate")),
    *(f"self_attn.indexer.{n}" for n in ("wq_b", "wk", "weights_proj")),
    *(f"linear_attn.{n}" for n in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")),
    *("linear_attn.out_proj", "linear_attn.conv1d"),
    *(f"mlp.{n}" for n in (*MLP, "gate", "shared_expert_gate")),
    *(f"mlp.{part}.{n}" for part in ("shared_experts", "shared_expert") for n in MLP),
    *("block_sparse_moe.gate", "eh_proj", "e_proj", "h_proj", "shared_head.head"),
    *("head", "embed_tokens", "emb.tok_emb"),
)
"""Matrices of layers of all families but for their experts."""
EXPERTS = {"minimax_m2": tuple(f"block_sparse_moe.experts.0.w{n}" for n in (1, 2, 3))}
"""The first of a layer's experts, which stands for all."""
OUTSIDE = (
    *("lm_head", "model.embed_tokens", "language_model.lm_head", "mtp.fc", "embed", "head"),
    *(f"model.visual.merger.{n}" for n in ("linear_fc1", "linear_fc2")),
    *(f"mm_projector.proj.{n}" for n in (0, 2)),
)
SEEN = (
    *(f"model.visual.blocks.{{}}.{n}" for n in ("attn.qkv", "attn.proj")),
    *(f"model.visual.blocks.{{}}.mlp.{n}" for n in ("linear_fc1", "linear_fc2")),
    *(f"vision_tower.encoder.blocks.{{}}.{n}" for n in ("wqkv", "wo", "mlp.fc0", "mlp.fc1")),
)
VISION_LAYERS = 27
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
    """Name of a configuration -> a folder with its config.json, and ModelSlim's description."""
    found = {path.parent.name: str(path.parent) for path in CONFIGS.glob("*/config.json")}
    models: dict[str, Any] = read()["models"]
    with tempfile.TemporaryDirectory() as place:
        for name, model in models.items():
            files = {"config.json": _config(models, model)}
            if "quantised" in model:
                files[DESCRIPTION] = description(files["config.json"], model["quantised"])
            folder = Path(place) / name
            folder.mkdir()
            for file, values in files.items():
                (folder / file).write_text(json.dumps(values), encoding="utf-8")
            found[name] = str(folder)
        yield found


def _config(models: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """As it was published; of another format's weights without what said the first one."""
    if "config" in model:
        return dict(model["config"])
    config: dict[str, Any] = models[model["of"]]["config"]
    return {key: value for key, value in config.items() if key != "quantization_config"}


def description(config: Mapping[str, Any], rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What ModelSlim writes beside 8-bit weights: name of a matrix -> its kind.

    Args:
        rules: kind, and which names; the others stay plain. It names more than the model has.
    """
    text = config.get("text_config", config)
    layers = text["num_hidden_layers"] + text.get("num_nextn_predict_layers", 0)
    experts = EXPERTS.get(config["model_type"], tuple(f"mlp.experts.0.{n}" for n in MLP))
    names = [*OUTSIDE, *(name.format(n) for n in range(VISION_LAYERS) for name in SEEN)]
    for layer, root in itertools.product(range(layers), ROOTS):
        names += [f"{root}.{layer}.{part}" for part in (*PARTS, *experts)]
    kinds = {f"{name}.weight": _kind(name, rules) for name in names}
    return {"version": "1.0.0", "group_size": 0, **kinds}


def _kind(name: str, rules: Sequence[Mapping[str, Any]]) -> str:
    for rule in rules:
        in_it, not_in_it = (
            any(fnmatch.fnmatchcase(name, one) for one in rule[key])
            for key in ("include", "exclude")
        )
        if in_it and not not_in_it:
            return str(rule["kind"])
    return "FLOAT"


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


def installed_host() -> str:
    """The name of the installed host, as ``hosts`` of a recipe and ``make HOST=`` have it."""
    return next(name for name, host in HOSTS.items() if host.vllm == metadata.version("vllm"))


def ask() -> None:
    """Ask check again of each whose page is the installed host's; the pages show it then.

    A recipe without a page gets one, for generate_docs.py to fill.
    """
    found, host = answers(), installed_host()
    with folders() as models:
        found |= {r["slug"]: check(r, models) for r in recipes() if r["hosts"][0] == host}
    kept = {r["slug"]: found[r["slug"]] for r in recipes() if r["slug"] in found}
    lines = [f'"{slug}": {json.dumps(kept[slug], sort_keys=True)}' for slug in kept]
    text = ",\n".join(lines)
    (FOLDER / "answers.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
    for recipe in recipes():
        page_file = FOLDER / f"{recipe['slug']}.md"
        if not page_file.is_file():
            page_file.write_text(stub(recipe), encoding="utf-8")


def table() -> str:
    """All recipes, for the first page."""
    lines = [
        "| target | draft | method | K | devices | vLLM |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for recipe in recipes():
        spec = recipe["speculative_config"]
        draft = f"`{recipe['draft']}`" if recipe["draft"] else "-"
        lines.append(
            f"| [`{recipe['target']}`]({recipe['slug']}.md) | {draft} | "
            f"{spec.get('method', 'draft_model')} | {spec['num_speculative_tokens']} | "
            f"{recipe['ranks']} | {', '.join(recipe['hosts'])} |"
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
    host = HOSTS[recipe["hosts"][0]].vllm_ascend
    parts = [
        recipe["know"],
        _sources(recipe),
        f"```bash\n{first} \\\n  {second}\n```",
        f"`mkv-ascend check` says of it, for vllm-ascend {host} on {max(8, recipe['ranks'])} "
        f"devices of 64 GiB{_elsewhere(recipe)}:",
        "\n".join(["```text", *lines, "```"]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _elsewhere(recipe: Recipe) -> str:
    """Whether the other host serves it too."""
    if len(recipe["hosts"]) == 1:
        return f" (vLLM {recipe['hosts'][0]} alone serves it)"
    return f", and serves it on {HOSTS[recipe['hosts'][1]].vllm_ascend} too"


def _sources(recipe: Recipe) -> str:
    """Where sizes are from, and what ModelSlim quantises."""
    models: dict[str, Any] = read()["models"]
    links = []
    for role in ("target_config", "draft_config"):
        model = models.get(recipe[role] or "")
        if model is not None and "quantised" in model:
            links.append(f"[ModelSlim's rules]({model['source']}) for what is quantised")
            model = models[model["of"]]
        if model is not None:
            links.append(f"[`config.json`]({model['source']}) of {model['source'].split('/')[4]}")
    return f"Sizes are those of {', '.join(links)}." if links else ""


def stub(recipe: Recipe) -> str:
    """A recipe's page before its generated part is written."""
    return f"# {recipe['title']}\n\n<!-- generated: begin -->\n<!-- generated: end -->\n"


if __name__ == "__main__":
    ask()
