# SPDX-License-Identifier: Apache-2.0
"""Which attention backend serves which layer, who chose it, and why a choice cannot work.

Pure: a request, options and an environment go in; a ``Choice`` or a ``SelectionError`` comes out.
The first of these that is given decides:

1. the backend that the layer's own class names (mamba layers and the like);
2. ``attention.layers``: the most specific pattern that matches the layer's name;
3. ``attention.target`` or ``attention.draft``: by kind, or for the whole role;
4. vLLM's own options: ``backend_per_kind`` of ``--attention-config`` for layers of a kind;
   ``--attention-backend`` for the target, the speculative configuration's ``attention_backend`` for
   the draft;
5. the best backend of the layer's kind that works in this environment.

A backend that is asked for but cannot serve the layer is an error. No other backend replaces it.
Nor may 3 and 4 name different backends, unless 3 says more exactly which layers it means.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from mkv_ascend import host_versions
from mkv_ascend.attention import catalog, compatibility, patterns
from mkv_ascend.attention.arguments import described
from mkv_ascend.attention.entry import BackendEntry, Environment, LayerRequest
from mkv_ascend.attention.options import NAMESPACE, AttentionOptions, RoleOptions
from mkv_ascend.layout.kind import Kind, Role, Word

VLLM_DEFAULT_NAMES = frozenset({"AUTO", "CUSTOM"})
"""Values of vLLM's option that leave the choice to the platform.

vllm-ascend registers its backends as ``CUSTOM``."""

CONTRADICT = "are equally specific"
"""What is said of patterns that contradict each other."""

POSSIBLE, CHANGE = ". Possible: ", ". Change: "
"""Between the three parts of a message that has them."""

VLLM_OPTIONS = {
    Role.TARGET: "--attention-backend",
    Role.DRAFT: "--speculative-config attention_backend",
}
"""How a user spells vLLM's own option for a role."""


VLLM_KINDS = {
    Kind.FULL_ATTENTION: "full_attention",
    Kind.SLIDING_WINDOW: "sliding_window",
    Kind.CROSS_ATTENTION: "cross_attention",
    Kind.MLA: "mla_attention",
    Kind.SPARSE_MLA: "mla_attention",
    Kind.COMPRESSED_MLA: "mla_attention",
}
"""vLLM's name of a kind in ``backend_per_kind`` (vLLM 0.30.0, ``KVCacheSpecKind``)."""


class ChosenBy(Word):
    """Who chose a backend."""

    DEFAULT = "default"
    OPTION = "option"
    PATTERN = "pattern"
    VLLM_OPTION = "vllm option"
    BATCH_INVARIANT = "batch invariant"
    LAYER = "layer"


class SelectionError(ValueError):
    """No backend can serve a layer, or the one that was asked for cannot."""

    def __init__(self, problem: str, request: LayerRequest | None = None) -> None:
        if request is not None:
            layer = f"{request.name} ({request.role}, {request.kind}, {request.layer_class})"
            problem = f"{layer}: {problem}"
        super().__init__(problem)


@dataclass(frozen=True)
class SelectionOptions:
    """Our options, and vLLM's own options as text (names of enum members)."""

    attention: AttentionOptions = field(default_factory=AttentionOptions)
    vllm_target: str | None = None
    vllm_draft: str | None = None
    vllm_by_kind: tuple[tuple[str, str], ...] = ()
    """``backend_per_kind`` of ``--attention-config``, which holds for both models."""

    def role(self, role: Role) -> RoleOptions:
        """Our options for one role."""
        return self.attention.target if role is Role.TARGET else self.attention.draft

    def vllm(self, role: Role) -> str | None:
        """vLLM's option for one role; None when it leaves the choice to the platform."""
        name = self.vllm_target if role is Role.TARGET else self.vllm_draft
        return None if name is None or name.upper() in VLLM_DEFAULT_NAMES else name


@dataclass(frozen=True)
class Choice:
    """The backend of one layer and who chose it."""

    request: LayerRequest
    backend: BackendEntry
    chosen_by: ChosenBy
    detail: str
    """The option that decided, as a user writes it, or the reason of a default."""


def select_backend(
    request: LayerRequest, options: SelectionOptions, environment: Environment
) -> Choice:
    """Choose the backend of one layer; SelectionError if none, or not the one asked for, can."""
    asked = asked_for(request, options)
    if asked is not None:
        backend, chosen_by, detail = asked
        if reasons := compatibility.reasons_against(backend, request, environment):
            problem = f"{backend.name}, asked for by {detail}, cannot serve it: "
            remedy = _remedy(request, environment) + _advice(request, backend, chosen_by)
            raise SelectionError(f"{problem}{'; '.join(reasons)}. {remedy}", request)
        return Choice(request, backend, chosen_by, detail)
    fitting = fitting_backends(request, environment)
    if not fitting:
        raise SelectionError(f"no backend can serve it. {_why_none(request, environment)}", request)
    if environment.batch_invariant:
        return Choice(request, fitting[0], ChosenBy.BATCH_INVARIANT, "VLLM_BATCH_INVARIANT")
    return Choice(request, fitting[0], ChosenBy.DEFAULT, f"best for {request.kind}")


def asked_for(
    request: LayerRequest, options: SelectionOptions
) -> tuple[BackendEntry, ChosenBy, str] | None:
    """The backend that something names for a layer, what does, and how a user writes it.

    None where the kind of the layer decides. It need not be able to serve the layer.

    Raises:
        SelectionError: several contradict each other, or one names no backend.
    """
    pattern = _pattern_for(request, options.attention.layers)
    if request.layer_backend is not None:
        return _layer_backend(request, pattern)
    if pattern is not None:
        detail = f"{NAMESPACE}.attention.layers[{pattern!r}]"
        return catalog.find(dict(options.attention.layers)[pattern]), ChosenBy.PATTERN, detail
    theirs, spelled, theirs_exact = _vllm_option(request, options)
    role_options = options.role(request.role)
    name = role_options.backend_of(request.kind)
    if name is None:
        return None if theirs is None else (theirs, ChosenBy.VLLM_OPTION, spelled)
    exact = role_options.every_kind is None
    suffix = f".{request.kind}" if exact else ""
    detail = f"{NAMESPACE}.attention.{request.role}{suffix}"
    # Theirs, where it is as exact as ours, must be the same.
    if theirs is not None and theirs.name != name and (theirs_exact or not exact):
        raise SelectionError(
            f"{detail} asks for {name} and {spelled} for {theirs.name}{POSSIBLE}one of the two, or "
            f"one backend in both{CHANGE}leave one out",
            request,
        )
    return catalog.find(name), ChosenBy.OPTION, detail


def _vllm_option(
    request: LayerRequest, options: SelectionOptions
) -> tuple[BackendEntry | None, str, bool]:
    """What vLLM's own options name, how a user writes it, and whether it is for this kind alone."""
    kind = VLLM_KINDS.get(request.kind, "")
    name = dict(options.vllm_by_kind).get(kind)
    if name is not None and name.upper() not in VLLM_DEFAULT_NAMES:
        spelled = f"--attention-config backend_per_kind.{kind}"
        return vllm_backend(name, request.role, spelled), f"{spelled} {name}", True
    name = options.vllm(request.role)
    if name is None:
        return None, "", False
    return vllm_backend(name, request.role), f"{VLLM_OPTIONS[request.role]} {name}", False


def _pattern_for(request: LayerRequest, layers: Sequence[tuple[str, str]]) -> str | None:
    best = patterns.most_specific([pattern for pattern, _ in layers], request.name)
    names = {dict(layers)[pattern] for pattern in best}
    if len(names) > 1:
        choices = " and ".join(f"{pattern!r} ({dict(layers)[pattern]})" for pattern in best)
        raise SelectionError(
            f"the patterns {choices} in {NAMESPACE}.attention.layers {CONTRADICT} "
            f"({patterns.literal_characters(best[0])} literal characters){POSSIBLE}patterns of "
            "which one is more specific, by docs/configuration.md"
            f"{CHANGE}make one more specific, or use the layer's name",
            request,
        )
    return best[0] if best else None


def _layer_backend(
    request: LayerRequest, pattern: str | None
) -> tuple[BackendEntry, ChosenBy, str]:
    assert request.layer_backend is not None
    if pattern is not None:
        raise SelectionError(
            f"its class {request.layer_class} names its backend itself "
            f"({request.layer_backend}); take it out of the pattern {pattern!r} in "
            f"{NAMESPACE}.attention.layers",
            request,
        )
    backend = catalog.find_class(request.layer_backend)
    if backend is None:
        raise SelectionError(
            f"its class {request.layer_class} names the backend "
            f"{request.layer_backend}, which the catalog does not hold; register an entry for it "
            "(mkv_ascend.attention.catalog.register)",
            request,
        )
    return backend, ChosenBy.LAYER, f"named by {request.layer_class}"


def vllm_backend(name: str, role: Role, spelled: str | None = None) -> BackendEntry:
    """The entry that a value of vLLM's own option names; SelectionError if it names none.

    Args:
        spelled: the option as a user writes it; the role's own if left out.
    """
    try:
        return catalog.find(name)
    except catalog.CatalogError as error:
        # Names of Ascend backends that vLLM's closed enum has.
        usable = sorted(alias for entry in catalog.entries() for alias in entry.vllm_names)
        raise SelectionError(
            f"{spelled or VLLM_OPTIONS[role]} {name}: not a backend of Ascend NPUs; usable there: "
            f"{', '.join(usable)}, or leave it out. All backends can be named in "
            f"{NAMESPACE}.attention.{role}"
        ) from error


def _remedy(request: LayerRequest, environment: Environment) -> str:
    if fitting := fitting_backends(request, environment):
        return f"Backends that would fit: {', '.join(entry.name for entry in fitting)}"
    return f"No backend fits. {_why_none(request, environment)}"


def _advice(request: LayerRequest, backend: BackendEntry, chosen_by: ChosenBy) -> str:
    """What to write instead of one name, for a role with layers of several kinds."""
    for_role = chosen_by in (ChosenBy.OPTION, ChosenBy.VLLM_OPTION)
    if not for_role or request.kind in backend.kinds:
        return ""
    kinds = sorted(str(kind) for kind in backend.kinds)
    example = ", ".join(f'"{kind}": "{backend.name}"' for kind in kinds)
    path = f"{NAMESPACE}.attention.{request.role}"
    return f". To use it for the kinds it serves only: {path}: {{{example}}}"


def fitting_backends(request: LayerRequest, environment: Environment) -> tuple[BackendEntry, ...]:
    """The backends that can serve the layer in this environment, best first."""
    return tuple(
        entry
        for entry in catalog.entries_for(request.kind)
        if not compatibility.reasons_against(entry, request, environment)
    )


def _why_none(request: LayerRequest, environment: Environment) -> str:
    candidates = catalog.entries_for(request.kind)
    if not candidates:
        return f"{host_versions.vllm_ascend()} has no backend for {request.kind}"
    computed = (entry.computed(request.keeps_keys) for entry in candidates)
    if lost := request.arguments.difference(*computed):
        return _lost(request, lost, host_versions.vllm_ascend())
    return "; ".join(
        f"{entry.name}: " + ", ".join(compatibility.reasons_against(entry, request, environment))
        for entry in candidates
    )


def require_computed(
    request: LayerRequest, backend: BackendEntry, implementation: type | None = None
) -> None:
    """Refuse a layer that asks for what its backend, however chosen, does not compute.

    Args:
        implementation: of the built layer: that of an option of vllm-ascend may compute less.

    Raises:
        SelectionError: something that the layer was given would be lost.
    """
    lost, of_whom = request.arguments - backend.computed(request.keeps_keys), backend.name
    names = {base.__name__ for base in getattr(implementation, "__mro__", ())}
    for name, missing in backend.implementations_without:
        if name in names and missing & request.arguments:
            lost, of_whom = lost | missing & request.arguments, f"{backend.name} with {name}"
    if lost:
        raise SelectionError(_lost(request, lost, of_whom), request)


def _lost(request: LayerRequest, lost: Set[str], of_whom: str) -> str:
    return (
        f"no attention of {of_whom} computes {described(lost)}, and the tokens would be wrong"
        f"{POSSIBLE}a {request.role} whose layers do not ask for it, by the table of arguments in "
        f"docs/attention_backends.md{CHANGE}choose another {request.role}"
    )


def unmatched_patterns(options: SelectionOptions, layer_names: Iterable[str]) -> tuple[str, ...]:
    """A message for each pattern of ``attention.layers`` that matches no layer at all."""
    names = list(layer_names)
    messages: list[str] = []
    for pattern, _ in options.attention.layers:
        if any(patterns.matches(pattern, name) for name in names):
            continue
        part = next((name for name in names if patterns.matches_part(pattern, name)), None)
        hint = (
            f"it is part of {part!r}: a pattern must match a whole name, so put .* around it"
            if part is not None
            else f"layers are, for instance: {', '.join(names[:3]) or 'none'}"
        )
        messages.append(f"{NAMESPACE}.attention.layers[{pattern!r}] matches no layer; {hint}")
    return tuple(messages)


def require_all_matched(options: SelectionOptions, layer_names: Iterable[str]) -> None:
    """Raise SelectionError if a pattern matches no layer. Call this once all layers are known."""
    messages = unmatched_patterns(options, layer_names)
    if messages:
        raise SelectionError("\n".join(messages))


def unused_options(options: SelectionOptions, requests: Iterable[LayerRequest]) -> tuple[str, ...]:
    """A warning for each option whose role or kind no layer has."""
    present = {(request.role, request.kind) for request in requests}
    messages: list[str] = []
    for role in Role:
        role_options = options.role(role)
        path = f"{NAMESPACE}.attention.{role}"
        if role_options.every_kind is not None and role not in {role for role, _ in present}:
            messages.append(f"{path} has no effect: there is no {role}")
        messages += [
            f"{path}.{kind} has no effect: no {role} layer is {kind}"
            for kind, _ in role_options.by_kind
            if (role, kind) not in present
        ]
    return tuple(messages)
