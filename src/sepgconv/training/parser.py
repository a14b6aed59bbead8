"""The parser of recipes and command lines: its errors are short, and name the nearest key that there is."""

import difflib
import re
import sys
from typing import NoReturn

from lightning.pytorch.cli import LightningArgumentParser

UNKNOWN = re.compile(r"does not accept option '(?P<key>[^']+)'|unrecognized arguments: -*(?P<option>[^\s=]+)")


class RecipeParser(LightningArgumentParser):
    """As LightningCLI's, with errors for people."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Says what is wrong, without two pages of usage, and leaves."""
        found = UNKNOWN.search(message)
        if found:
            key = found["key"] or found["option"]
            near = nearest(key, self.keys())
            message = f"unknown key {key!r}" + (f"; did you mean {near!r}?" if near else "")
        sys.stderr.write(f"sepgconv: {message}\nsee sepgconv fit --help for the keys there are\n")
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
