"""The public names of a module as Markdown, with types, fields and first sentences, read from its source."""

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

LINE = 88
"""Letters of a line; a longer signature has an argument on each."""


def reference(name: str) -> str:
    """The public names of a module as Markdown: those of `__all__`, or all that it defines itself."""
    module = importlib.import_module(name)
    named = getattr(module, "__all__", None)
    if named is None:
        parts = [_entry(node, module) for node in _tree(module).body if _is_public(node)]
    else:
        parts = [_entry(_node(getattr(module, key)), module) for key in named]
    opening = "" if named else f"`{name}`: {inspect.getdoc(module) or ''}\n\n"
    return opening + "\n\n".join(part for part in parts if part)


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(Path(str(module.__file__)).read_text())


def _node(thing: object) -> ast.stmt:
    """The definition of a class or function in the file that defines it."""
    nodes = {getattr(node, "name", None): node for node in _tree(inspect.getmodule(thing)).body}  # type: ignore[arg-type]
    return nodes[thing.__name__]  # type: ignore[attr-defined]


def _is_public(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")


def _entry(node: ast.stmt, module: ModuleType) -> str:
    text = ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None
    if isinstance(node, ast.FunctionDef):
        return f"### {node.name}\n\n{_fenced(_signature(node))}\n\n{text or ''}"
    if not isinstance(node, ast.ClassDef):
        return ""
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    head = f"class {node.name}({bases})" if bases else f"class {node.name}"
    parts = [f"### {node.name}", _fenced(head), text or "", _fields(node)]
    for method in node.body:
        if _is_public(method) and isinstance(method, ast.FunctionDef) and (record := ast.get_docstring(method)):
            kind = {ast.unparse(mark) for mark in method.decorator_list}
            shown = (
                f"{method.name}: {_type(method.returns)}" if "property" in kind else _signature(method, hide_self=True)
            )
            sentence = textwrap.indent(record.partition("\n\n")[0], "    ")
            parts.append(f"`{' '.join(shown.split())}`\n:   {sentence.strip()}")
    return "\n\n".join(part for part in parts if part)


def _fields(node: ast.ClassDef) -> str:
    """The fields of a class with the line that follows each."""
    rows = []
    for field, record in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id[0] != "_":
            text = ""
            if isinstance(record, ast.Expr) and isinstance(record.value, ast.Constant):
                text = " ".join(str(record.value.value).split()).replace("|", "\\|")
            rows.append(f"| `{field.target.id}` | {_cell(_type(field.annotation))} | {_default(field)} | {text} |")
    return "\n".join(["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows]) if rows else ""


def _default(field: ast.AnnAssign) -> str:
    """The default as written; a call of `field(...)` by what it makes."""
    if field.value is None:
        return ""
    text = ast.unparse(field.value)
    if match := re.search(r"\b(?:default|default_factory)=(?:lambda: )?([^,)]+\(?\)?)", text):
        text = match[1]
    return "" if text.startswith(("field(", "later(")) else _cell(text)


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
