"""The names and signatures of the window functions, as BlueFog's users expect."""

import inspect

import pytest

import bluecomm as bf

PUT = "tensor, name, self_weight=None, dst_weights=None, require_mutex=False"
GET = "name, src_weights=None, require_mutex=False"
UPDATE = (
    "name, self_weight=None, neighbor_weights=None, reset=False, clone=False, "
    "require_mutex=False"
)
SIGNATURES = {
    "win_create": "tensor, name, zero_init=False",
    "win_free": "name=None",
    **{
        f"{long}{name}{suffix}": arguments
        for name, arguments in (
            ("win_put", PUT),
            ("win_accumulate", PUT),
            ("win_get", GET),
        )
        for long in ("", "neighbor_")
        for suffix in ("", "_nonblocking")
    },
    "win_update": UPDATE,
    "win_update_then_collect": "name, require_mutex=True",
    "win_wait": "handle, timeout_s=None",
    "win_poll": "handle",
    "win_mutex": "name, for_self=False, ranks=None",
    "win_lock": "name",
    "get_win_version": "name",
    "get_current_created_window_names": "",
    "win_associated_p": "name",
    "turn_on_win_ops_with_associated_p": "",
    "turn_off_win_ops_with_associated_p": "",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_arguments_of_bluefog_come_first(name):
    parameters = inspect.signature(getattr(bf, name)).parameters.values()
    positional = [
        each.name if each.default is each.empty else f"{each.name}={each.default}"
        for each in parameters
        if each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    assert ", ".join(positional) == SIGNATURES[name]
    added = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert added <= {"timeout_s"}
