# SPDX-License-Identifier: Apache-2.0
"""JSON schema of ``--additional-config``, for editors and for whoever checks files of options.

It says no more than ``mkv_ascend.config`` does: what the schema takes, ``parse_config`` takes too,
but for regular expressions, whose syntax no schema can tell. Names of backends are taken in any
case; the schema has those of the catalog, vLLM's own and aliases, spelled as there.

Source of the words: JSON Schema, draft 2020-12 (https://json-schema.org/draft/2020-12).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mkv_ascend.attention import catalog
from mkv_ascend.attention.draft_window import SMALLEST_WINDOW
from mkv_ascend.attention.entry import BackendEntry
from mkv_ascend.attention.options import NAMESPACE, WindowBound
from mkv_ascend.attention.patterns import MAX_PATTERN_LENGTH
from mkv_ascend.attention.request import PLAIN_DTYPES
from mkv_ascend.config import LONGEST_WINDOW
from mkv_ascend.layout.kind import Kind

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def options_schema() -> Schema:
    """The schema of the whole option; keys of vllm-ascend beside ours may be anything.

    Backends registered by other packages must be registered before (``catalog.register``).
    """
    return {
        "$schema": DIALECT,
        "title": "--additional-config of a server with mkv_ascend",
        "type": "object",
        "properties": {
            NAMESPACE: _mapping(
                "Options of mkv_ascend. Nothing needs to be given.",
                attention=_attention(),
                layout=_layout(),
                kv_cache=_kv_cache(),
                drafting=_drafting(),
                start_up_report=_or_null(
                    "An absolute path of a file: what start-up logs, as JSON. Null writes none.",
                    type="string",
                    pattern="^/",
                ),
            )
        },
        # A slip in our own key would pass in silence: vllm-ascend ignores keys it does not know.
        "patternProperties": {f"^(?!{NAMESPACE}$)[mM][kK][vV]": False},
    }


def _attention() -> Schema:
    return _mapping(
        "Which attention backend serves which layer.",
        target=_role("the target"),
        draft=_role("the draft, which never inherits the target's choice"),
        layers={
            "description": "Regular expression, which must match a whole layer name -> backend. "
            "It comes before target and draft.",
            "type": "object",
            "propertyNames": {"maxLength": MAX_PATTERN_LENGTH},
            "additionalProperties": _backend(catalog.entries()),
        },
        window_bound={
            "description": "What a window of W tokens passes to operators whose left bound is "
            "inclusive: W - 1 (exact), or W (vllm_ascend).",
            "enum": [bound.value for bound in WindowBound],
            "default": WindowBound.EXACT.value,
        },
    )


def _layout() -> Schema:
    return _mapping(
        "How layers are put into KV groups.",
        shared_pages={
            "description": "Whether groups share pages that hold several blocks of one group each.",
            "type": "boolean",
            "default": True,
        },
        without_draft={
            "description": "Whether a target alone is planned where vLLM splits its layers into "
            "equal groups.",
            "type": "boolean",
            "default": False,
        },
    )


def _kv_cache() -> Schema:
    return _mapping(
        "The caches of keys and values.",
        draft_dtype={
            "description": "Dtype of the draft's cache. Null: what --kv-cache-dtype says.",
            "enum": [*sorted(PLAIN_DTYPES), None],
            "default": None,
        },
        replicate_draft={
            "description": "Whether each rank keeps all of the draft's keys under decode context "
            "parallelism. False: where its attention needs it.",
            "type": "boolean",
            "default": False,
        },
    )


def _drafting() -> Schema:
    return _mapping(
        "How the draft drafts.",
        window=_or_null(
            "Tokens that the draft attends to, itself included; blocks before them are given back. "
            "Null: what the draft's model says.",
            type="integer",
            minimum=SMALLEST_WINDOW,
            maximum=LONGEST_WINDOW,
        ),
        give_up_below=_or_null(
            "Accepted share of draft tokens. If the target accepts less of 1,000 proposals, the "
            "draft is given up until the server is started again. Null: never.",
            type="number",
            exclusiveMinimum=0,
            exclusiveMaximum=1,
        ),
    )


def _role(whose: str) -> Schema:
    by_kind = {kind.value: _backend(catalog.entries_for(kind)) for kind in Kind}
    return {
        "description": f"The backend of {whose}: one name, or a name for each kind of layer.",
        "anyOf": [
            _backend(catalog.entries()),
            {"type": "object", "properties": by_kind, "additionalProperties": False},
        ],
    }


def _backend(entries: Iterable[BackendEntry]) -> Schema | bool:
    """A name of those that options may choose; nothing where layers name their backend."""
    chosen = [entry for entry in entries if not entry.chosen_by_layer]
    names = [entry.name for entry in chosen]
    others = sorted({name for entry in chosen for name in (*entry.aliases, *entry.vllm_names)})
    return {"enum": [*names, *others]} if names else False


def _mapping(description: str, **properties: Schema) -> Schema:
    return {
        "description": description,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _or_null(description: str, type: str, **limits: Any) -> Schema:
    return {"description": description, "type": [type, "null"], "default": None, **limits}
