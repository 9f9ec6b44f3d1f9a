# SPDX-License-Identifier: Apache-2.0
"""What clang parses, and the cores cannot do: found by a walk over a kernel's functions.

Stack frames are added up from the sizes of parameters and local variables along the deepest path of
calls: more than a compiler needs that inlines, which is the safe side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from clang import cindex

from kernel_syntax import Finding, functions, is_ours, runs_on_cores

Kind = cindex.CursorKind
STACK_BYTES = 32 * 1024
"""Stack of a core, and of one function: CANN's build gives -cce-aicore-stack-size=0x8000."""
WIDE_FLOATS = {cindex.TypeKind.DOUBLE, cindex.TypeKind.LONGDOUBLE, cindex.TypeKind.FLOAT128}
NOT_ON_CORES = {
    Kind.CXX_NEW_EXPR: "new",
    Kind.CXX_DELETE_EXPR: "delete",
    Kind.CXX_THROW_EXPR: "throw",
    Kind.CXX_TRY_STMT: "try",
    Kind.CXX_DYNAMIC_CAST_EXPR: "dynamic_cast",
    Kind.CXX_TYPEID_EXPR: "typeid",
}
CLASSES = {Kind.CLASS_DECL, Kind.STRUCT_DECL, Kind.CLASS_TEMPLATE}
CASTS = {Kind.CSTYLE_CAST_EXPR, Kind.CXX_FUNCTIONAL_CAST_EXPR, Kind.CXX_REINTERPRET_CAST_EXPR}


@dataclass
class Function:
    """A function that a core runs, as it is instantiated."""

    cursor: Any
    frame: int = 0
    calls: list[tuple[str, int]] = field(default_factory=list)
    """Key of the function called, and the line."""

    @property
    def name(self) -> str:
        return str(self.cursor.spelling)

    @property
    def in_class(self) -> bool:
        """Whether it is a member function."""
        return self.cursor.semantic_parent.kind in CLASSES


@dataclass(frozen=True)
class Stack:
    """The deepest path of calls from a kernel."""

    bytes: int
    path: tuple[str, ...]


def _below(cursor: Any) -> Iterator[Any]:
    for child in cursor.get_children():
        yield child
        yield from _below(child)


def _finding(cursor: Any, rule: str, message: str) -> Finding:
    return Finding(cursor.location.file.name, cursor.location.line, rule, message)


def _value_type(cursor: Any) -> Any:
    """The canonical type, of an element where it is an array."""
    kind = cursor.type.get_canonical()
    while kind.kind == cindex.TypeKind.CONSTANTARRAY:
        kind = kind.element_type.get_canonical()
    return kind


def _size(cursor: Any) -> int:
    """Bytes of a variable; 0 where a template's parameter decides."""
    return max(0, int(cursor.type.get_size()))


class CallGraph:
    """The functions of a parse for the cores, and what they call."""

    def __init__(self, unit: Any) -> None:
        self.functions: dict[str, Function] = {}
        self.kernels: list[str] = []
        self.written = [one for one in functions(unit) if runs_on_cores(one)]
        for cursor in self.written:
            key = self._add(cursor)
            if any(child.kind == Kind.CUDAGLOBAL_ATTR for child in cursor.get_children()):
                self.kernels.append(key)

    def _add(self, cursor: Any) -> str:
        key = str(cursor.get_usr())
        if key in self.functions:
            return key
        function = self.functions[key] = Function(cursor)
        for node in _below(cursor):
            if node.kind in (Kind.VAR_DECL, Kind.PARM_DECL):
                static = node.storage_class == cindex.StorageClass.STATIC
                function.frame += 0 if static else _size(node)
            elif node.kind == Kind.CALL_EXPR and node.referenced is not None:
                called = node.referenced.get_definition()
                if called is not None and is_ours(called):
                    function.calls.append((self._add(called), node.location.line))
        return key

    def _members(self) -> Iterator[Any]:
        """Member variables, with their initial values, of the classes whose functions cores run."""
        classes = {one.cursor.semantic_parent.get_usr(): one for one in self.functions.values()}
        for one in classes.values():
            for member in one.cursor.semantic_parent.get_children():
                if member.kind in (Kind.FIELD_DECL, Kind.VAR_DECL) and one.in_class:
                    yield member

    def findings(self) -> Iterator[Finding]:
        roots = [*(function.cursor for function in self.functions.values()), *self._members()]
        for root in roots:
            for node in (root, *_below(root)):
                if is_ours(node):
                    yield from _of_node(node)
        yield from self._recursions()
        for key in self.kernels:
            stack = self.stack(key)
            if stack.bytes > STACK_BYTES:
                message = f"{stack.bytes} bytes of {STACK_BYTES}: {' > '.join(stack.path)}"
                yield _finding(self.functions[key].cursor, "stack", message)

    def _recursions(self) -> Iterator[Finding]:
        """Each call that leads back into a function under way."""
        done: set[str] = set()

        def follow(key: str, path: tuple[str, ...]) -> Iterator[Finding]:
            function = self.functions[key]
            for called, line in function.calls:
                if called in (*path, key):
                    file = function.cursor.location.file.name
                    name = self.functions[called].name
                    yield Finding(file, line, "recursion", f"{function.name} leads to {name} again")
                elif called not in done:
                    yield from follow(called, (*path, key))
            done.add(key)

        for key in list(self.functions):
            if key not in done:
                yield from follow(key, ())

    def stack(self, key: str, under_way: tuple[str, ...] = ()) -> Stack:
        """What the function and its calls need at most at one time."""
        function = self.functions[key]
        deepest = Stack(0, ())
        for called in dict.fromkeys(called for called, _ in function.calls):
            if called not in (*under_way, key):
                below = self.stack(called, (*under_way, key))
                deepest = max(deepest, below, key=lambda one: one.bytes)
        step = f"{function.name} ({function.frame})"
        return Stack(function.frame + deepest.bytes, (step, *deepest.path))


def _of_node(node: Any) -> Iterator[Finding]:
    """Rules that one node of the syntax tree is enough for."""
    if _value_type(node).kind in WIDE_FLOATS:
        yield _finding(node, "double", f"{node.spelling or 'an expression'} is a double")
    if node.kind in NOT_ON_CORES:
        yield _finding(node, "language", f"{NOT_ON_CORES[node.kind]} in code of a core")
    if node.kind in CASTS:
        yield from _mixed_spaces(node)
    if node.kind == Kind.CALL_EXPR and str(node.spelling).startswith("__builtin_"):
        yield _finding(node, "standard_library", f"{node.spelling} in code of a core")
    called = node.referenced if node.kind == Kind.CALL_EXPR else None
    if called is not None and called.is_virtual_method():
        yield _finding(node, "language", f"{node.spelling} is virtual")


def _mixed_spaces(cast: Any) -> Iterator[Finding]:
    """A cast may change the address space of a pointer without an error."""
    values = [child for child in cast.get_children() if child.kind.is_expression()]
    pointer = cindex.TypeKind.POINTER
    for value in values[-1:]:
        # The type behind the implicit conversions, which take over the target's.
        while value.kind == Kind.UNEXPOSED_EXPR and len(list(value.get_children())) == 1:
            value = next(iter(value.get_children()))
        before, after = (one.type.get_canonical() for one in (value, cast))
        if before.kind == after.kind == pointer:
            spaces = [kind.get_pointee().get_address_space() for kind in (before, after)]
            if spaces[0] != spaces[1]:
                yield _finding(
                    cast,
                    "address_space",
                    f"casts '{value.type.spelling}' to '{cast.type.spelling}'",
                )
