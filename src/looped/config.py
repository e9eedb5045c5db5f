"""Configs are data: frozen dataclasses and module-level functions, written as JSON and read back strictly.

A class or function is written `module:name`. Reading one resolves only names of this library, and names in modules
that the user passed in (`code`): a file on disk can never name other code.
"""

import collections.abc
import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.util
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

C = TypeVar("C")
_hints_of = functools.cache(typing.get_type_hints)
"""Cached, since reading annotations is slow and a sweep asks a thousand times."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the nearest valid name, or all of them."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return f"Did you mean `{close[0]}`?" if close else f"Valid: {', '.join(valid)}."


LATER = {"later": True}
"""Metadata of a field that was added later: at its default it is left out of a run's config.

So older runs keep their hash. The default is what earlier versions did, and must never change.
"""


def encode(value: Any, *, without: Literal["nothing", "later", "defaults"] = "nothing") -> Any:
    """A config as plain JSON data; `without` says which fields are left out where they have their defaults."""
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value  # first, since most are
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        data: dict[str, Any] = {"type": name_of(type(value))}
        for name, default in _fields_and_defaults(type(value), without):
            item = getattr(value, name)
            if default is _WRITTEN or item != default:
                data[name] = item if type(item) in _PLAIN else encode(item, without=without)
        return data
    if isinstance(value, (list, tuple)):
        return [encode(item, without=without) for item in value]
    if inspect.isfunction(value):
        return name_of(value)
    raise ValueError(f"a config holds dataclasses, functions, numbers and strings; got {value!r}.")


_PLAIN = (int, str, bool, types.NoneType)
"""Types whose values are written as they are: most fields, and a listing of a sweep writes hundreds of thousands."""
_WRITTEN = dataclasses.MISSING
"""In the place of a default: the field is written whatever its value."""


@functools.cache
def _fields_and_defaults(kind: Any, without: str) -> list[tuple[str, Any]]:
    """The fields of a config class, each with the value at which it is left out."""
    return [
        (field.name, _default(field) if without in ("defaults", *field.metadata) else _WRITTEN)
        for field in dataclasses.fields(kind)
        if field.init
    ]


def _default(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def flat(data: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested data under dotted names such as `train.optimizer.clip`."""
    fields: dict[str, Any] = {}
    for key, value in data.items():
        fields |= flat(value, f"{where}{key}.") if isinstance(value, Mapping) else {f"{where}{key}": value}
    return fields


def name_of(thing: Any) -> str:
    """`module:name` of a class or function; what a script defines is named after its file."""
    if "<" in thing.__qualname__:
        raise ValueError(f"a config can only hold module-level names; got `{thing.__qualname__}`. Move it out.")
    return f"{_module_name(thing.__module__)}:{thing.__qualname__}"


def _module_name(module: str) -> str:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).stem if module == "__main__" and file else module


def decode(data: Any, hint: Any, where: str = "", code: Mapping[str, Any] | None = None) -> Any:
    """Read `data` as the annotated type `hint`; an error says where they do not match."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return data
    if origin in (Union, types.UnionType):
        options = typing.get_args(hint)
        if data is None and type(None) in options:
            return None
        return decode(data, next(option for option in options if option is not type(None)), where, code)
    if origin is Literal:
        if data not in typing.get_args(hint):
            raise ValueError(f"`{where}` must be one of {', '.join(map(repr, typing.get_args(hint)))}; got {data!r}.")
        return data
    if origin is tuple:
        return _decode_tuple(data, typing.get_args(hint), where, code)
    if origin is collections.abc.Callable:
        return _resolve(data, where, code)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(data, typing.cast(type, hint), where, code)
    return _decode_plain(data, hint, where)


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _decode_plain(data: Any, hint: Any, where: str) -> Any:
    if not isinstance(hint, type):
        raise ValueError(f"`{where}` is annotated {hint}, which a config cannot hold. Use a tuple, or a dataclass.")
    if hint is float and isinstance(data, int) and not isinstance(data, bool) and abs(data) < 2**1023:
        data = float(data)
    if not isinstance(data, hint) or (isinstance(data, bool) and hint is not bool):
        raise ValueError(f"`{where}` must be {hint.__name__}; got {data!r}.")
    if isinstance(data, float) and not math.isfinite(data):
        raise ValueError(f"`{where}` must be finite; got {data!r}.")
    return data


def _decode_tuple(data: Any, hints: tuple[Any, ...], where: str, code: Mapping[str, Any] | None) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise ValueError(f"`{where}` must be a list; got {data!r}.")
    if len(hints) == 2 and hints[1] is Ellipsis:
        hints = (hints[0],) * len(data)
    if len(hints) != len(data):
        raise ValueError(f"`{where}` must have {len(hints)} entries; got {len(data)}.")
    return tuple(
        decode(item, hint, f"{where}[{i}]", code) for i, (item, hint) in enumerate(zip(data, hints, strict=True))
    )


def _decode_dataclass(data: Any, hint: type[C], where: str, code: Mapping[str, Any] | None) -> C:
    if not isinstance(data, dict):
        raise ValueError(f"`{where}` must be an object with the fields of {hint.__name__}; got {data!r}.")
    data = dict(data)
    name, alike = data.pop("type", name_of(hint)), _subclasses(hint, code)
    kind = alike.get(str(name)) or _resolve(name, _join(where, "type"), code)
    if not (isinstance(kind, type) and issubclass(kind, hint) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"`{_join(where, 'type')}` must name a {hint.__name__}; got `{name_of(kind)}`.")
    hints = _hints_of(kind)
    names = _field_names(kind)
    for key in data:
        if key not in names:
            having = sorted(short for short, other in alike.items() if key in _field_names(other))
            remedy = f"{kind.__name__} has none; {', '.join(having)} has." if having else nearest(key, names)
            raise ValueError(f"unknown field `{_join(where, key)}`. {remedy}")
    values = {key: decode(value, hints[key], _join(where, key), code) for key, value in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"`{where}` is incomplete: {error}.") from None


def _subclasses(hint: type, code: Mapping[str, Any] | None) -> dict[str, type]:
    """The dataclasses of looped, or handed over, that a `hint` may stand for, by their short names."""
    known: dict[str, type] = {}
    pending = hint.__subclasses__()
    for kind in pending:  # grows while it is read
        pending += kind.__subclasses__()
        allowed = _is_ours(kind.__module__) or kind in (code or {}).values()
        if allowed and dataclasses.is_dataclass(kind) and not inspect.isabstract(kind):
            known[kind.__name__] = kind
    return known


def _is_ours(module: str) -> bool:
    return module == "looped" or module.startswith("looped.")


@functools.cache
def _field_names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]


def _resolve(name: Any, where: str, code: Mapping[str, Any] | None) -> Any:
    module, colon, path = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not colon:
        raise ValueError(f"`{where}` must be a name of the form `module:name`; got {name!r}.")
    if code is not None and name in code:
        return code[name]
    if not _is_ours(module):
        raise ValueError(
            f"`{where}` names code outside looped, `{name}`, that was not handed over. "
            f"Pass the file that defines it (`--code FILE.py`, or `code=` in Python)."
        )
    try:
        thing = importlib.import_module(module)
        for part in path.split("."):
            thing = getattr(thing, part)
    except (ImportError, AttributeError):
        raise ValueError(f"`{where}` names `{name}`, which this version of looped does not have.") from None
    command = module.split(".")[1:2] in (["cli"], ["__main__"])  # commands are no part of an experiment
    known = inspect.isclass(thing) or inspect.isfunction(thing)
    if command or not known or getattr(thing, "__module__", None) != module:
        raise ValueError(f"`{where}` must name a class or function of looped; got `{name}`.")
    return thing


def code_of(*sources: Any) -> dict[str, Any]:
    """Classes, functions or whole modules that the user passes in, by the names that a config has for them."""
    things = [
        thing
        for source in sources
        for thing in (vars(source).values() if inspect.ismodule(source) else [source])
        if (inspect.isclass(thing) or inspect.isfunction(thing)) and "<" not in thing.__qualname__
    ]
    return {name_of(thing): thing for thing in things}


def load_code(path: str | Path) -> types.ModuleType:
    """Import a file of the user's own; passing it in is what allows a config to name what it defines."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file.")
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if Path(getattr(loaded, "__file__", None) or "").resolve() == path.resolve():
            return loaded
        raise ValueError(f"{path} is named like the module `{path.stem}`; rename the file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)  # it may import its siblings, as a script may; last, so that they hide no other module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[path.stem]
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}.") from error
    return module


def code_places(config: Any) -> dict[str, str]:
    """The modules outside this library that a config names, with their files: another process must load them first."""
    modules = {_module_name(kind.__module__): sys.modules[kind.__module__] for kind in kinds(config)}
    return {
        name: str(Path(file).resolve())
        for name, module in sorted(modules.items())
        if name.partition(".")[0] != "looped" and (file := getattr(module, "__file__", None))  # a notebook has none
    }


def override(config: C, assignments: Iterable[str], code: Mapping[str, Any] | None = None) -> C:
    """The config with fields changed, all at once: `train.steps=100`, `train.pool=null`, `task={"type": ...}`.

    A type may be given by its short name: `train.optimizer={"type": "Adam", "learning_rate": 0.001}`.
    """
    fields: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path.strip():
            raise ValueError(f"an override reads `field=value`; got `{assignment}`.")
        fields.pop(path.strip(), None)  # the last assignment counts, in its place
        fields[path.strip()] = parse_value(text.strip())
    return change(config, fields, code)


def change(config: C, fields: Mapping[str, Any], code: Mapping[str, Any] | None = None) -> C:
    """The config with fields changed, all at once, to JSON data: {"train.steps": 100, "train.pool": None}."""
    if fields and all(isinstance(value, (int, float)) for value in fields.values()):
        with contextlib.suppress(LookupError):
            return _with_numbers(config, fields)
    data = encode(config)
    for path, value in fields.items():
        _assign(data, path, value)
    return decode(data, type(config), "", {**code_of(*kinds(config)), **(code or {})})


def _with_numbers(config: C, fields: Mapping[str, Any], where: str = "") -> C:
    """The config with numbers changed, of which only what holds them is made anew: a sweep has thousands.

    A LookupError where that is not enough, or the names are wrong.
    """
    hints, inner, values = _hints_of(type(config)), collections.defaultdict[str, dict[str, Any]](dict), {}
    for path, value in fields.items():
        name, dot, tail = path.partition(".")
        if name not in _field_names(type(config)):
            raise LookupError(name)
        if dot:
            inner[name][tail] = value
        else:
            values[name] = decode(value, hints[name], _join(where, name))
    for name, changes in inner.items():
        part = getattr(config, name, None)
        if name in values or not dataclasses.is_dataclass(part):
            raise LookupError(name)
        values[name] = _with_numbers(part, changes, _join(where, name))
    return dataclasses.replace(config, **values)  # pyright: ignore[reportArgumentType]


def _assign(data: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for depth, part in enumerate([*parents, last]):
        if not isinstance(data, dict):
            raise ValueError(f"unknown field `{path}`: `{'.'.join(parents[:depth])}` is {data!r} and has no fields.")
        if depth < len(parents):
            if part not in data:
                raise ValueError(f"unknown field `{path}`. {nearest(part, data.keys() - {'type'})}")
            data = data[part]
    data[last] = value  # `decode` refuses a field that its class does not have


def kinds(config: Any) -> list[Any]:
    """The classes and functions that a config holds; the user handed them over by using them."""
    if dataclasses.is_dataclass(config):
        parts = [kinds(getattr(config, field.name)) for field in dataclasses.fields(config)]
        return [type(config), *(kind for part in parts for kind in part)]
    if isinstance(config, (list, tuple)):
        return [kind for item in config for kind in kinds(item)]
    return [config] if inspect.isfunction(config) else []


def parse_value(text: str) -> Any:
    """A number, true, false, null, list or object as JSON; Python's True, False, None; anything else is a string."""
    spelled = {"True": True, "False": False, "None": None}  # `none` is a word of some fields: model.inject=none
    try:
        return spelled[text] if text in spelled else json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return text
