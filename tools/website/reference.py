"""The public names of a module as Markdown, with types, fields and first sentences, read from its source."""

import ast
import importlib
import importlib.util
import re
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

LINE = 88
"""Letters of a line; a longer signature has an argument on each."""


def reference(name: str) -> str:
    """The public names of a module as Markdown: those of `__all__`, or all that it defines itself."""
    tree = _tree(name)
    if any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" for node in tree.body):
        module = importlib.import_module(name)
        parts = [_entry(*map(_definition, _own_classes(getattr(module, key)))) for key in module.__all__]
    else:
        parts = [f"`{name}`: {ast.get_docstring(tree) or ''}", *map(_entry, filter(_is_public, tree.body))]
    return "\n\n".join(part for part in parts if part)


@cache
def _tree(name: str) -> ast.Module:
    """The source of a module, which is not imported: it may need an extra."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text())


def _definition(thing: Any) -> ast.stmt:
    """The statement that defines a class or function."""
    return next(node for node in _tree(thing.__module__).body if getattr(node, "name", None) == thing.__name__)


def _own_classes(thing: Any) -> list[Any]:
    """A class and those of looped that it extends, whose fields it has too; a function alone."""
    bases = getattr(thing, "__mro__", (thing,))[1:]
    return [thing, *(base for base in bases if base.__module__.startswith("looped."))]


def _is_public(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")


def _entry(node: ast.stmt, *extended: ast.stmt) -> str:
    text = ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None
    if isinstance(node, ast.FunctionDef):
        return f"### {node.name}\n\n{_fenced(_signature(node))}\n\n{text or ''}"
    if not isinstance(node, ast.ClassDef):
        return ""
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    head = f"class {node.name}({bases})" if bases else f"class {node.name}"
    parts = [f"### {node.name}", _fenced(head), text or "", _fields([*reversed(extended), node])]
    for method in node.body:
        if _is_public(method) and isinstance(method, ast.FunctionDef) and (record := ast.get_docstring(method)):
            kind = {ast.unparse(mark) for mark in method.decorator_list}
            shown = (
                f"{method.name}: {_type(method.returns)}" if "property" in kind else _signature(method, hide_self=True)
            )
            sentence = textwrap.indent(record.partition("\n\n")[0], "    ")
            parts.append(f"`{' '.join(shown.split())}`\n:   {sentence.strip()}")
    return "\n\n".join(part for part in parts if part)


def _fields(nodes: Sequence[ast.stmt]) -> str:
    """The fields of a class with the line that follows each; a class that comes later has the last word on a field."""
    rows: dict[str, str] = {}
    for node in nodes:
        assert isinstance(node, ast.ClassDef)
        for field, record in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(field, ast.AnnAssign) or "ClassVar" in (kind := _type(field.annotation)):
                continue
            name, text = ast.unparse(field.target), ""
            if isinstance(record, ast.Expr) and isinstance(record.value, ast.Constant):
                text = " ".join(str(record.value.value).split()).replace("|", "\\|")
            if not name.startswith("_"):
                rows[name] = f"| `{name}` | {_cell(kind)} | {_default(field)} | {text} |"
    return (
        "\n".join(["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows.values()]) if rows else ""
    )


def _default(field: ast.AnnAssign) -> str:
    """The default as written; a call of `field(...)` by what it makes."""
    if field.value is None:
        return ""
    if not isinstance(field.value, ast.Call) or ast.unparse(field.value.func) not in ("field", "later"):
        return _cell(ast.unparse(field.value))
    given = {keyword.arg: keyword.value for keyword in field.value.keywords}
    if "default" in given:
        return _cell(ast.unparse(given["default"]))
    factory = given.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return _cell(ast.unparse(factory.body))
    return "" if factory is None else _cell(f"{ast.unparse(factory)}()")


def _cell(text: str) -> str:
    return f"`{text}`" if text else ""


def _type(node: ast.expr | None) -> str:
    return ast.unparse(node).strip("'\"") if node is not None else ""


def _signature(node: ast.FunctionDef, *, hide_self: bool = False) -> str:
    """`name(arguments) -> type`, on several lines where it is long."""
    arguments = ast.parse(ast.unparse(node)).body[0].args  # type: ignore[attr-defined] - a copy, to be cut
    if hide_self and arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args.pop(0)
    ends = f" -> {_type(node.returns)}" if node.returns is not None else ""
    line = f"{node.name}({ast.unparse(arguments)}){ends}"
    if len(line) <= LINE or hide_self:
        return line
    parts = re.split(r", (?=(?:\*|\w+:|\w+,|\w+$))", ast.unparse(arguments))
    return f"{node.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){ends}"


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"
