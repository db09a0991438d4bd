"""Immutable records with typed fields, checked when they are read from JSON.

They behave like keyword-only frozen dataclasses, and type checkers treat them as such.
They are not dataclasses because defining fifty of those takes 50 ms, which every agent
and every rank would spend at its start.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import (  # noqa: UP035
    TYPE_CHECKING,
    Any,
    Callable,
    ClassVar,
    Dict,
    NamedTuple,
    TypeVar,
)

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_):
        """Return a decorator without effect: only type checkers need the real one."""
        return lambda cls: cls


_Self = TypeVar("_Self", bound="Structure")
_SHOWN = 60


class FieldError(Exception):
    """A field is missing or has the wrong type. The text is a clause of a sentence."""


class _Codec(NamedTuple):
    """Functions that convert the values of one type to JSON and, checked, back."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _plain(name: str, *types: type) -> _Codec:
    """Return the codec of a type that JSON has as well."""

    def load(value: Any) -> Any:
        # In Python a bool is an int, but not in these fields.
        if not isinstance(value, types) or (isinstance(value, bool) and name != "bool"):
            raise FieldError(f"is {_shorten(value)}, expected {name}")
        return value

    return _Codec(_same, load)


def _optional(inner: _Codec) -> _Codec:
    return _Codec(
        lambda value: None if value is None else inner.dump(value),
        lambda value: None if value is None else inner.load(value),
    )


def _list_of(inner: _Codec) -> _Codec:
    def load(value: Any) -> Any:
        if not isinstance(value, list):
            raise FieldError(f"is {_shorten(value)}, expected a list")
        return [_load_item(inner, index, each) for index, each in enumerate(value)]

    if inner.dump is _same:
        return _Codec(_same, load)
    return _Codec(lambda value: [inner.dump(each) for each in value], load)


def _dict_of(inner: _Codec) -> _Codec:
    def load(value: Any) -> Any:
        if not isinstance(value, dict):
            raise FieldError(f"is {_shorten(value)}, expected an object")
        return {key: _load_item(inner, key, each) for key, each in value.items()}

    if inner.dump is _same:
        return _Codec(_same, load)
    return _Codec(
        lambda value: {key: inner.dump(each) for key, each in value.items()}, load
    )


def _one_of(choices: Any) -> _Codec:
    def load(value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            expected = " or ".join(f"'{choice}'" for choice in choices)
            raise FieldError(f"is {_shorten(value)}, expected {expected}")
        return value

    return _Codec(_same, load)


def _load_item(codec: _Codec, where: Any, value: Any) -> Any:
    try:
        return codec.load(value)
    except FieldError as error:
        raise FieldError(f"has an element {where!r} that {error}") from None


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _load_float(value: Any) -> float:
    return float(_NUMBER.load(value))


_NUMBER = _plain("a number", int, float)
_CODECS: Dict[str, _Codec] = {  # noqa: UP006
    "Any": _Codec(_same, _same),
    "bool": _plain("bool", bool),
    "float": _Codec(_same, _load_float),
    "int": _plain("an integer", int),
    "str": _plain("text", str),
}


def _codec_of(annotation: str) -> _Codec:
    """Return the codec for an annotation, which is text and is not evaluated."""
    if annotation in _CODECS:
        return _CODECS[annotation]
    if annotation.endswith(" | None"):
        return _optional(_codec_of(annotation[: -len(" | None")]))
    outer, _, rest = annotation.partition("[")
    inner = rest[:-1].strip("()")  # Python 3.8 writes dict[(str, Any)]
    if outer == "list":
        return _list_of(_codec_of(inner))
    if outer == "dict" and inner.startswith("str, "):
        return _dict_of(_codec_of(inner[len("str, ") :]))
    if outer == "Literal":
        return _one_of(json.loads(f"[{inner}]".replace("'", '"')))
    raise TypeError(f"a field of type {annotation} cannot travel as JSON")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Structure:
    """Base of records whose annotations are their fields.

    A field is ``bool``, ``int``, ``float``, ``str``, ``Any``, a ``Literal`` of texts,
    a structure, or a list, ``dict[str, ...]`` or ``| None`` of these. The module that
    defines it must import ``annotations`` from ``__future__``.
    """

    _codecs: ClassVar[Mapping[str, _Codec]] = {}
    _defaults: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        # Before Python 3.10, a class without annotations shows those of its base.
        annotations = getattr(cls, "__annotations__", {})
        fields = [name for name in annotations if not name.startswith("_")]
        cls._codecs = {name: _codec_of(annotations[name]) for name in fields}
        cls._defaults = {
            name: cls.__dict__[name] for name in fields if name in cls.__dict__
        }
        _CODECS[cls.__name__] = _Codec(Structure.to_json, cls._load)

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(self._defaults)
        self.__dict__.update(fields)
        if self.__dict__.keys() != self._codecs.keys():
            wrong = sorted(self.__dict__.keys() ^ self._codecs.keys())
            raise TypeError(f"{type(self).__name__}: missing or unknown field {wrong}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    @classmethod
    def fields(cls) -> list[str]:
        """Return the names of the fields."""
        return list(cls._codecs)

    def replace(self: _Self, **changes: Any) -> _Self:
        """Return a copy with some fields changed."""
        return type(self)(**{**self.__dict__, **changes})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that ``json`` can write."""
        return {
            name: codec.dump(self.__dict__[name])
            for name, codec in self._codecs.items()
        }

    @classmethod
    def from_json(cls: type[_Self], values: Mapping[str, Any]) -> _Self:
        """Return the structure with the fields in ``values``, ignoring unknown ones.

        Raises:
            FieldError: A field is missing or has the wrong type.
        """
        fields = {}
        for name, codec in cls._codecs.items():
            if name in values:
                try:
                    fields[name] = codec.load(values[name])
                except FieldError as error:
                    raise FieldError(f"field '{name}' {error}") from None
            elif name not in cls._defaults:
                raise FieldError(f"field '{name}' is missing")
        return cls(**fields)

    @classmethod
    def _load(cls: type[_Self], value: Any) -> _Self:
        if not isinstance(value, dict):
            raise FieldError(f"is {_shorten(value)}, expected an object")
        try:
            return cls.from_json(value)
        except FieldError as error:
            raise FieldError(f"is an object whose {error}") from None
