"""The small changes that `tools/mutation.py` makes to a module, one at a time.

| kind | from | to |
|---|---|---|
| comparison | `<` | `<=`, `>=`; likewise the others |
| | `==`, `is`, `in` | `!=`, `is not`, `not in`, and back |
| arithmetic | `+` | `-`; `*` / `//`, `%`, shifts, bits; in `+=` as well |
| constant | `n` | `n + 1`; `True` / `False` |
| logic | `and` | `or`, and back; `not x` to `x`, `-x` to `x` |
| condition | of `if`, `while`, a comprehension | `True` (not of `while`), `False` |
| statement | a call, `x.y = …`, `x[y] = …`, `x += …`, `del` | nothing |
| flow | `return x` | `return None`; `break` / `continue` |
| choice | `min`, `any` | `max`, `all`, and back |

Never changed, for no behaviour of a record's way hangs on it: annotations, docstrings, `__slots__`,
`__all__`, what only type checkers read, decorators, `__repr__`, texts, and `raise` statements
(whether one is reached is changed, by its condition). Nor is an assignment left out of `__init__`
(whoever reads the attribute would notice, which proves nothing), `strict=` of `zip` turned off
(it guards against wrong calls), or `return False` made `return None` (it becomes `return True`).
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Mutant", "mutants_of", "mutated"]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.Pow: ast.Mult,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNREAD_FIELDS = {"annotation", "returns", "decorator_list"}
_UNREAD_NAMES = {"__slots__", "__all__"}
_UNREAD_FUNCTIONS = {"__repr__", "__str__"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module.

    Attributes:
        number: Its place among the module's mutants.
        line: Where it is.
        column: Likewise.
        function: The function or class that it is in; "" for none.
        change: What is changed to what.
        is_in_body: It is run when a function is called, not when the module is imported.
    """

    number: int
    line: int
    column: int
    function: str
    change: str
    is_in_body: bool


@dataclass(slots=True)
class _Change:
    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST
    new: ast.AST
    function: str
    is_in_body: bool

    def make(self) -> None:
        """Put the new node where the old one is."""
        new = ast.copy_location(self.new, self.node)
        if self.index is None:
            setattr(self.parent, self.field, new)
        else:
            getattr(self.parent, self.field)[self.index] = new


def mutants_of(source: str) -> list[Mutant]:
    """Return all mutants of a module's text, in the order of its lines."""
    return [
        Mutant(
            number,
            getattr(change.node, "lineno", 0),
            getattr(change.node, "col_offset", 0),
            change.function,
            f"{_text(change.node)} -> {_text(change.new)}",
            change.is_in_body,
        )
        for number, change in enumerate(_changes(ast.parse(source)))
    ]


def mutated(source: str, number: int) -> ast.Module:
    """Return a module with one of its mutants, every line where it was."""
    tree = ast.parse(source)
    for at, change in enumerate(_changes(tree)):
        if at == number:
            change.make()
            break
    else:
        raise IndexError(f"there is no mutant {number}")
    return ast.fix_missing_locations(tree)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Pass):
        return "nothing"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def _changes(tree: ast.Module) -> Iterator[_Change]:
    yield from _below(tree, "", is_in_body=False)


def _below(node: ast.AST, function: str, *, is_in_body: bool) -> Iterator[_Change]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    for field, value in ast.iter_fields(node):
        if field in _UNREAD_FIELDS:
            continue
        runs_later = is_in_body or (
            field == "body" and isinstance(node, ast.FunctionDef | ast.Lambda)
        )
        is_list = isinstance(value, list)
        for index, child in enumerate(value if is_list else [value]):
            if not isinstance(child, ast.AST) or _is_unread(child):
                continue
            for new in [*_replacements(child, function), *_conditions(child, node, field)]:
                at = index if is_list else None
                yield _Change(node, field, at, child, new, function, runs_later)
            yield from _below(child, function, is_in_body=runs_later)


def _is_unread(node: ast.AST) -> bool:
    """Whether nothing hangs on it but what people and type checkers read."""
    match node:
        case ast.Raise() | ast.JoinedStr():
            return True
        case ast.Assign(targets=[ast.Name(name)]):
            return name in _UNREAD_NAMES
        case ast.If():
            return any(
                isinstance(part, ast.Name) and part.id == "TYPE_CHECKING"
                for part in ast.walk(node.test)
            )
        case ast.FunctionDef():
            return node.name in _UNREAD_FUNCTIONS
        case ast.keyword("strict"):
            return True
    return False


def _replacements(node: ast.AST, function: str) -> Iterator[ast.AST]:
    is_first = function.endswith("__init__")
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                for other in _COMPARISONS[type(operator)]:
                    new = copy.copy(node)
                    new.ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                    yield new
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Name(name) if name in _NAMES:
            yield ast.Name(_NAMES[name], node.ctx)
        case ast.Return(ast.expr() as value) if not _is_falsy(value):
            yield ast.Return(ast.Constant(None))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.AugAssign():
            yield ast.Pass()
            yield ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)
        case ast.Expr(ast.Call()) | ast.Delete():
            yield ast.Pass()
        case ast.Assign() if any(map(_is_place, node.targets)) and not is_first:
            yield ast.Pass()
        case ast.AnnAssign() if node.value and _is_place(node.target) and not is_first:
            yield ast.Pass()


def _conditions(node: ast.AST, parent: ast.AST, field: str) -> Iterator[ast.AST]:
    """What a condition may be instead."""
    if isinstance(node, ast.Constant):
        return
    is_loop = isinstance(parent, ast.While)
    if (field == "test" and isinstance(parent, ast.If | ast.IfExp | ast.While)) or field == "ifs":
        yield ast.Constant(False)
        if not is_loop:
            yield ast.Constant(True)


def _is_falsy(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _is_place(target: ast.expr) -> bool:
    """Whether an assignment to it is seen outside of the function."""
    match target:
        case ast.Tuple(parts):
            return any(map(_is_place, parts))
    return isinstance(target, ast.Attribute | ast.Subscript)
