"""The parser of recipes and command lines: its errors are short and name the file, or the nearest key."""

import difflib
import os
import re
import sys
from typing import Any, NoReturn

import yaml
from jsonargparse import Namespace, get_loader, set_loader
from lightning.pytorch.cli import LightningArgumentParser

UNKNOWN = re.compile(r"does not accept option '(?P<key>[^']+)'|unrecognized arguments: -*(?P<option>[^\s=]+)")
MODE = "sepgconv recipe"  # of jsonargparse: YAML that is a tree
DEPTH, VALUES = 50, 10_000  # a recipe has about 5 levels and 100 values


class RecipeParser(LightningArgumentParser):
    """As LightningCLI's, with errors for people."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"parser_mode": MODE, **kwargs})
        self._file = ""

    def parse_path(self, cfg_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Namespace:
        """Reads a recipe; whatever is wrong with it is said with its name."""
        before, self._file = self._file, f"{os.fspath(cfg_path)}: "
        try:
            return super().parse_path(cfg_path, *args, **kwargs)
        except UnicodeDecodeError as error:
            self.error(f"is not text in UTF-8 (byte {error.start})", error)
        finally:
            self._file = before

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Says what is wrong, without two pages of usage, and leaves."""
        found = UNKNOWN.search(message)
        if found:
            key = found["key"] or found["option"]
            near = nearest(key, self.keys())
            message = f"unknown key {key!r}" + (f"; did you mean {near!r}?" if near else "")
        elif message.startswith("Unexpected config: "):
            message = "a recipe must be keys and values, as in recipes/"
        line = " ".join(message.replace("Problems parsing config: ", "").split())
        sys.stderr.write(f"sepgconv: {self._file}{line}\nsee sepgconv fit --help for the keys there are\n")
        sys.exit(2)

    def keys(self) -> list[str]:
        """All keys of a recipe, dotted."""
        parsers = [
            self,
            *(p for action in self._actions if isinstance(action.choices, dict) for p in action.choices.values()),
        ]
        options = [option for parser in parsers for option in getattr(parser, "_option_string_actions", {})]
        names = (option.removeprefix("--") for option in options if option.startswith("--"))
        return list(dict.fromkeys(name for name in names if not name.endswith((".help", "+", "help"))))


def nearest(key: str, known: list[str]) -> str | None:
    """The known key that a key is most likely meant to be: one spelt alike, or one that ends alike."""
    if close := difflib.get_close_matches(key, known, n=1, cutoff=0.8):
        return close[0]
    leaves: dict[str, str] = {}
    for name in known:
        leaves.setdefault(name.rsplit(".", 1)[-1], name)
    leaf = difflib.get_close_matches(key.rsplit(".", 1)[-1], leaves, n=1, cutoff=0.75)
    close = difflib.get_close_matches(key, known, n=1)
    return leaves[leaf[0]] if leaf else close[0] if close else None


def load_tree(text: str) -> Any:
    """YAML in which anchors stand for values, but nothing is inside itself, and nothing grows without bound."""
    value = get_loader("yaml")(text)
    count = 0
    waiting: list[tuple[Any, tuple[int, ...]]] = [(value, ())]
    while waiting:
        node, above = waiting.pop()
        if id(node) in above:
            raise yaml.YAMLError("an anchor refers to itself")
        if len(above) > DEPTH:
            raise yaml.YAMLError(f"values are nested more than {DEPTH} deep")
        if (count := count + 1) > VALUES:
            raise yaml.YAMLError(f"it stands for more than {VALUES:,} values")
        if isinstance(node, dict | list):
            children = list(node.values()) if isinstance(node, dict) else node
            waiting.extend((child, (*above, id(node))) for child in children)
    _check_keys(yaml.compose(text, yaml.SafeLoader))
    return value


def _check_keys(node: yaml.Node | None) -> None:
    """Refuses a key that is given twice in one place: YAML would forget the first without a word."""
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.YAMLError(f"the key {twice!r} is given twice")
        for _, child in node.value:
            _check_keys(child)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _check_keys(child)


set_loader(MODE, load_tree, exceptions=(yaml.YAMLError, RecursionError))
