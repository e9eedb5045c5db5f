"""The commands of looped as Markdown, from the program's own help."""

import re

import typer

from looped.cli import app


def commands() -> str:
    """A section for each command: what it does, how it is called, its options."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="looped")
    return "\n\n".join(_section(name, group.commands[name], context) for name in group.list_commands(context))


def _section(name: str, command, parent) -> str:
    context = typer.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    rows = ["| option | what it does | default |", "| --- | --- | --- |"]
    for option in command.params:
        record = getattr(option, "help", None) or ""
        is_argument = option.param_type_name == "argument"
        names = (
            str(option.name).strip("_").upper() if is_argument else ", ".join([*option.opts, *option.secondary_opts])
        )
        has_default = isinstance(option.default, str | int | float) and option.default is not False
        default = option.default if has_default else ""
        rows.append(f"| {_code(names)} | {_text(record)} | {_code(default)} |")
    text = re.sub(r"\s*\f\s*", "", command.help or "").strip()
    return "\n\n".join([f"## looped {name}", text, f"    {usage}", "\n".join(rows) if command.params else ""])


def _code(value: object) -> str:
    return f"`{value}`" if str(value) else ""


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
