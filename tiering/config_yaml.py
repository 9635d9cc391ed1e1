"""YAML as plain data that remembers on which line each value stands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml

from tiering.config_problems import ABSENT, KeyPath, Problem
from tiering.redaction import MASK

__all__ = ["LocatedData", "read_yaml"]

_Plain = str | int | float | bool | None

_MOST_LEVELS = 50
_MOST_VALUES = 100_000
"""Far more than any configuration has; an alias counts each time, so that a few lines cannot fill the memory."""

_TOO_DEEP = f"is nested too deeply; allowed: {_MOST_LEVELS} levels"
_MERGE = "tag:yaml.org,2002:merge"
_ODD_INTEGER = re.compile(r"[-+]?0[0-9_]+|.*:.*")


@dataclass(slots=True)
class LocatedData:
    """Settings and where they come from.

    Attributes:
        value: mappings with string keys, lists, strings, numbers, booleans and None.
        places: file and line of each value by its path, at least of the whole.
        problems: what is wrong with the text itself; ``value`` is what could be read all the same.
    """

    value: object
    places: dict[KeyPath, str]
    problems: list[Problem] = field(default_factory=list)


def read_yaml(text: str, source: str, *, is_file: bool = True) -> LocatedData:
    """Read one YAML document; what is wrong with it is reported in the result, not raised.

    Keys stay as they are written (``on`` is no boolean as a key). Problems are also: a key twice in a mapping, a merge
    key, a tag that is not plain data, numbers such as 016 and 1:30, which do not mean what they look like, the
    mask of a secret, and a document that contains itself.

    Args:
        text: the document.
        source: what places call it.
        is_file: whether places have a line.
    """
    reader = _Reader(source, is_file)
    value = None
    try:
        value = reader.read(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reader.report((), f"is not valid YAML: {_described(error)}", mark)
    except yaml.YAMLError as error:
        reader.report((), f"is not valid YAML: {str(error).splitlines()[0]}", None)
    except RecursionError:
        reader.report((), _TOO_DEEP, None)
    return LocatedData(value, reader.places, reader.problems)


def _described(error: yaml.MarkedYAMLError) -> str:
    text = str(error.problem or error.context)
    if "undefined alias" in text:
        return "found an undefined alias; what begins with * goes in quotes"  # it may be a password
    return f"{text} (YAML is indented with spaces, not with tabs)" if "\\t" in text else text


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Reader:
    def __init__(self, source: str, is_file: bool) -> None:
        self.places: dict[KeyPath, str] = {(): source}
        self.problems: list[Problem] = []
        self._source = source
        self._is_file = is_file
        self._constructor = yaml.constructor.SafeConstructor()
        self._open: list[yaml.Node] = []

    def read(self, text: str) -> object:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return self._value(node, ()) if node else None

    def report(self, path: KeyPath, text: str, mark: yaml.Mark | None, value: object = ABSENT) -> None:
        self.problems.append(Problem(path, text, value, place=self._place(mark)))

    def _value(self, node: yaml.Node, path: KeyPath) -> object:
        self.places[path] = self._place(node.start_mark)
        if node in self._open:
            self.report(path, "contains itself", node.start_mark)
            return None
        if len(self._open) == _MOST_LEVELS:
            self.report(path, _TOO_DEEP, node.start_mark)
            return None
        if len(self.places) > _MOST_VALUES:
            raise yaml.MarkedYAMLError(problem=f"more than {_MOST_VALUES} values", problem_mark=node.start_mark)
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or not _is_unicode(key_node.value):
                self.report(path, "has a key that is not a plain word", key_node.start_mark)
                continue
            key = key_node.value
            if key_node.tag == _MERGE:
                text = "merge keys are not read; allowed: defaults, which lie under every tier, or the keys themselves"
                self.report((*path, key), text, key_node.start_mark)
                continue
            if key in found:
                self.report((*path, key), f"is set twice, first at {self.places[*path, key]}", key_node.start_mark)
                continue
            found[key] = self._value(value_node, (*path, key))
            self.places[*path, key] = self._place(key_node.start_mark)
        return found

    def _scalar(self, node: yaml.Node, path: KeyPath) -> _Plain:
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        try:
            value: object = self._constructor.construct_object(node)
        except (yaml.YAMLError, ValueError):
            value = ...
        if tag in {"int", "float"} and _ODD_INTEGER.fullmatch(node.value):
            text = "is a number in base 8 or 60 for YAML; write it as a decimal number, or in quotes"
            self.report(path, text, node.start_mark, node.value)
            return None
        if isinstance(value, str) and not _is_unicode(value):
            self.report(path, "holds half of a surrogate pair, which is no character", node.start_mark)
            return None
        if value == MASK:
            self.report(path, "stands for a secret that was not shown; write the secret itself", node.start_mark)
            return None
        if isinstance(value, _Plain):
            return value
        meaning = "what its tag says" if tag == node.tag else repr(tag)  # a password may begin with an exclamation mark
        self.report(path, f"is read by YAML as {meaning}, which no setting has; write it in quotes", node.start_mark)
        return None

    def _place(self, mark: yaml.Mark | None) -> str:
        return f"{self._source}:{mark.line + 1}" if mark and self._is_file else self._source
