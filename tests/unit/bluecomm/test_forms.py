"""Public forms of an operation: what `inspect`, `help` and `pickle` see of them."""

from __future__ import annotations

import inspect
import pickle
import typing
from collections.abc import Callable

import pytest
import torch

import bluecomm as bf
from bluecomm.ops import forms
from bluecomm.runtime import Handle, current_process

FORMS = [
    name
    for name in bf.__all__
    if name.removesuffix("_").endswith("_nonblocking") and "win_" not in name
]


class Finished(Handle[str]):
    """A handle that has a result from the start."""

    def __init__(self, result: str) -> None:
        self._result = result

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> str:
        return self._result

    def on_finish(self, callback: Callable[[], object]) -> None:
        callback()


def _shout(form: forms.Form, /, word: str, *, times: int = 1) -> Handle[str]:
    """Return the word in capitals.

    Args:
        word: Any word.
        times: How often.
    """
    return Finished(f"{word.upper() * times} {form}")


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (forms.blocking(_shout), "shout"),
        (forms.blocking_in_place(_shout, "Shout in place."), "shout_"),
        (forms.nonblocking(_shout), "shout_nonblocking"),
        (forms.nonblocking_in_place(_shout), "shout_nonblocking_"),
    ],
)
def test_each_form_starts_the_same_function(form, name):
    result = form("hi", times=2)
    if "nonblocking" in name:
        result = result.wait()
    form_of_name = forms.Form("nonblocking" not in name, name.endswith("_"))
    assert result == f"HIHI {form_of_name}"
    assert form.__name__ == form.__qualname__ == name
    assert form.__module__ == __name__
    returned = "Handle[str]" if "nonblocking" in name else "str"
    assert str(inspect.signature(form)) == (
        f"(word: 'str', *, times: 'int' = 1) -> '{returned}'"
    )
    hints = typing.get_type_hints(form)
    assert hints["word"] is str
    assert hints["return"] == (Handle[str] if "nonblocking" in name else str)
    with pytest.raises(TypeError, match="unexpected keyword argument 'loud'"):
        form("hi", loud=True)


def test_errors_about_arguments_name_the_public_function():
    for form in (bf.broadcast, bf.broadcast_nonblocking_):
        with pytest.raises(TypeError, match=r"^broadcast\(\) missing .*'root_rank'"):
            form(torch.ones(1))


def test_docstrings_refer_to_the_blocking_form():
    assert forms.blocking(_shout).__doc__ == _shout.__doc__
    assert inspect.getdoc(forms.blocking_in_place(_shout, "Shout in place.")) == (
        "Shout in place.\n\nArguments and errors are those of ``shout``."
    )
    assert inspect.getdoc(forms.nonblocking_in_place(_shout, "Loud.")) == (
        "Start ``shout_`` and return a handle at once.\n\n"
        "The input must not be used before the handle has been waited for.\nLoud.\n"
        "Arguments, result and errors are those of ``shout``."
    )


@pytest.mark.parametrize("name", FORMS)
def test_nonblocking_forms_take_the_arguments_of_the_blocking_one(name):
    stem = name.replace("_nonblocking", "")
    mine = inspect.signature(getattr(bf, name)).parameters
    theirs = dict(inspect.signature(getattr(bf, stem)).parameters)
    if name == "allreduce_nonblocking":
        del theirs["compression"]
    assert list(mine.values()) == list(theirs.values())
    assert f"Start ``{stem}`` and return a handle" in getattr(bf, name).__doc__


@pytest.mark.parametrize("name", ["allreduce_", *FORMS])
def test_forms_are_pickled_by_name(name):
    function = getattr(bf, name)
    assert function.__name__ == name
    assert pickle.loads(pickle.dumps(function)) is function


def test_in_a_world_of_one_all_forms_agree():
    bf.init()
    x = torch.tensor([1.0, 2.0])
    assert torch.equal(bf.broadcast(x, 0), x)
    assert bf.broadcast(x, root_rank=0) is not x
    assert bf.broadcast_(x, 0) is x
    assert bf.broadcast_nonblocking_(x, 0).wait() is x
    assert torch.equal(bf.broadcast_nonblocking(x, 0, "x").wait(), x)
    current_process().leave()
