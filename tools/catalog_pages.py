# SPDX-License-Identifier: Apache-2.0
"""Tables of the attention backends for the documentation, from their catalog."""

from __future__ import annotations

from collections.abc import Iterable

from mkv_ascend.attention import catalog
from mkv_ascend.attention.arguments import OPTIONAL
from mkv_ascend.attention.entry import BackendEntry


def _words(values: Iterable[object]) -> str:
    return ", ".join(sorted(str(value) for value in values)) or "none"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _batch_invariance(entry: BackendEntry) -> str:
    if entry.batch_invariant_modules is None:
        return "no"
    needs = _words(entry.batch_invariant_modules)
    text = "yes" if needs == "none" else f"with `{needs}`"
    return text if not entry.sinks else f"{text}, not with sinks"


def _arguments() -> list[str]:
    """The table of what attention layers ask for, and who computes it."""
    lines = ["| argument of a layer | asks for | computed by |", "| --- | --- | --- |"]
    for name, meaning in OPTIONAL.items():
        backends = []
        for entry in catalog.entries():
            if name not in entry.computed(keeps_keys=True):
                continue
            without = [f"`{x}`" for x, missing in entry.implementations_without if name in missing]
            but = f" (not by {_words(without)})" if without else ""
            backends.append(f"`{entry.name}`{but}")
        lines.append(f"| `{name}` | {meaning} | {', '.join(backends) or 'none'} |")
    return lines


def tables() -> str:
    """The catalog as three Markdown tables and a list of notes."""
    lines = [
        "| backend | other names | kinds | model dtypes | cache dtypes | head sizes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for entry in catalog.entries():
        aliases = (
            ", ".join(f"`{alias}`" for alias in sorted(entry.aliases | entry.vllm_names)) or "-"
        )
        lines.append(
            f"| `{entry.name}` | {aliases} | {_words(entry.kinds)} | {_words(entry.model_dtypes)} "
            f"| {_words(entry.kv_cache_dtypes)} | {entry.head_sizes} |"
        )
    lines += [
        "",
        "| backend | devices | sinks | non-causal | ACL graph | batch invariant | needs | blocks |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for entry in catalog.entries():
        blocks = ", ".join(str(size) for size in entry.kernel_block_sizes)
        lines.append(
            f"| `{entry.name}` | {_words(entry.generations)} | {_yes(entry.sinks)} "
            f"| {_yes(entry.non_causal)} | {entry.graphs} | {_batch_invariance(entry)} "
            f"| {_words(entry.required_modules)} | {blocks} |"
        )
    lines += ["", *_arguments(), ""]
    by_layer = ", ".join(f"`{entry.name}`" for entry in catalog.entries() if entry.chosen_by_layer)
    lines.append(f"- Named by the layer's own class, not by options: {by_layer}.")
    lines += [
        f"- `{entry.name}`: heads of {size} elements have values of {values}."
        for entry in catalog.entries()
        for size, values in entry.other_value_sizes
    ]
    lines += [f"- `{entry.name}`: {note}" for entry in catalog.entries() for note in entry.notes]
    return "\n".join(lines) + "\n"
