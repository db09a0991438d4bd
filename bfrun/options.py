"""A command-line parser that suggests the nearest option or value for a wrong one."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from bfrun.wording import did_you_mean


class OptionParser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that suggests the nearest name for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Print the error, with a similar name if there is one, and exit with 2."""
        super().error(self._wrong_value(message) + self._nearest(message))

    def _wrong_value(self, message: str) -> str:
        """Say that an option takes no value, or which ones, as for --encrypt=auth."""
        found = re.match(
            r"argument ([^/:]+)\S*: ignored explicit arg\S* '(.*)'", message
        )
        if found is None:
            return message
        option, value = found.groups()
        begin = f"{option}="
        values = [name[len(begin) :] for name in self._options() if begin in name]
        if not values:
            return f"argument {option}: takes no value, got '{value}'"
        expected = ", ".join(sorted(values))
        return f"argument {option}: expected one of {expected}, got '{value}'"

    def _nearest(self, message: str) -> str:
        unknown = re.match(r"unrecognized arguments: (-[^\s=]*)", message)
        if unknown:
            return did_you_mean(unknown[1], self._options())
        invalid = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if invalid:
            return did_you_mean(invalid[1], re.findall(r"[^\s',]+", invalid[2]))
        return ""

    def _options(self) -> set[str]:
        """Return the options of this parser and of its subcommands."""
        names = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    names |= set(parser._option_string_actions)
        return names
