"""Every frame survives its way over the wire, and malformed ones are refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfrun.channel import MessageParser, encode
from bfrun.errors import ProtocolError
from bfrun.frames.__main__ import ROUTES
from bfrun.frames.agent_to_driver import AGENT_TO_DRIVER, RankExited
from bfrun.frames.agent_to_rank import AGENT_TO_RANK, TaskPart
from bfrun.frames.driver_to_agent import DRIVER_TO_AGENT, Beat
from bfrun.frames.driver_to_rank import DRIVER_TO_RANK, RankLost, StallTable
from bfrun.frames.frame import Frame, decode
from bfrun.frames.rank_to_driver import RANK_TO_DRIVER, Goodbye, Publish
from bfrun.structure import Structure
from tests.support.frames import make_operation

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "control-plane.md"
EVERY = [(route, frame) for route in ROUTES for frame in route.frames.values()]
# A field may be a part of frames, or a frame.
CLASSES = {
    cls.__name__: cls for cls in (*Structure.__subclasses__(), *Frame.__subclasses__())
}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
PLAIN = {
    "Any": JSON_VALUES,
    "bool": st.booleans(),
    "float": st.floats(allow_nan=False),
    "int": st.integers(),
    "str": st.text(),
}


def values_of(annotation):
    """Return a strategy for a field, from the text of its annotation."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    if annotation.endswith(" | None"):
        return st.none() | values_of(annotation[: -len(" | None")])
    outer, _, rest = annotation.partition("[")
    inner = rest[:-1]
    if outer == "list":
        return st.lists(values_of(inner), max_size=3)
    if outer == "dict":
        of = values_of(inner.removeprefix("str, "))
        return st.dictionaries(st.text(), of, max_size=3)
    if outer == "Literal":
        return st.sampled_from([word.strip(" '\"") for word in inner.split(",")])
    return structures(CLASSES[annotation])


def structures(cls):
    """Return a strategy for frames or parts of frames of a class."""
    fields = {name: cls.__annotations__[name] for name in cls.fields()}
    return st.builds(cls, **{name: values_of(text) for name, text in fields.items()})


def each_frame(frames):
    """Return parameters (route, class) with readable names."""
    return [
        pytest.param(route, cls, id=f"{cls.kind}-{route.sender}-{route.receiver}")
        for route, cls in frames
    ]


@pytest.mark.parametrize(("route", "cls"), each_frame(EVERY))
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_frame_survives_the_wire(route, cls, data):
    frame = data.draw(structures(cls))
    (message,) = MessageParser().feed(encode(frame.to_message()))
    assert decode(message, "it", route) == frame


@pytest.mark.parametrize(
    ("route", "cls"), each_frame(item for item in EVERY if item[1].fields())
)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_wrong_field_is_refused(route, cls, data):
    message = data.draw(structures(cls)).to_message()
    checked = [name for name in cls.fields() if cls.__annotations__[name] != "Any"]
    name = data.draw(st.sampled_from(checked))
    is_list = cls.__annotations__[name].startswith("list[")
    message[name] = 1.5 if is_list else [[]]
    assert_refused(
        message, route, f"it sent an invalid '{cls.kind}': field '{name}' is"
    )


@pytest.mark.parametrize(
    ("route", "cls"), each_frame(item for item in EVERY if item[1].fields())
)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_only_fields_with_a_default_may_be_missing(route, cls, data):
    message = data.draw(structures(cls)).to_message()
    name = data.draw(st.sampled_from(cls.fields()))
    del message[name]
    if hasattr(cls, name):
        assert getattr(decode(message, "it", route), name) == getattr(cls, name)
    else:
        missing = f"it sent an invalid '{cls.kind}': field '{name}' is missing"
        assert_refused(message, route, missing)


def assert_refused(message, route, beginning):
    with pytest.raises(ProtocolError) as refusal:
        decode(message, "it", route)
    assert str(refusal.value).startswith(beginning)
    assert "; install one version of bluecomm and bfrun on all" in str(refusal.value)


@given(JSON_VALUES.map(lambda value: {"type": "exited", "rank": value}))
def test_no_field_harms_the_reader(message):
    with pytest.raises(ProtocolError):
        decode(message, "it", AGENT_TO_DRIVER)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rank": "1"}, "field 'rank' is '1', expected an integer"),
        ({"rank": True}, "field 'rank' is True, expected an integer"),
        ({"oom": 3}, "field 'oom' is 3, expected text"),
        ({"pid": None}, "field 'pid' is None, expected an integer"),
        ({"status": 1.5}, "field 'status' is 1.5, expected an integer"),
    ],
)
def test_the_refusal_names_sender_field_and_remedy(change, error):
    message = RankExited(rank=1, pid=7, status=0).to_message()
    with pytest.raises(ProtocolError) as refusal:
        decode({**message, **change}, "the agent on node1", AGENT_TO_DRIVER)
    assert str(refusal.value) == (
        f"the agent on node1 sent an invalid 'exited': {error}; install one version of "
        "bluecomm and bfrun on all hosts"
    )


def test_the_refusal_names_the_way_to_a_wrong_part():
    table = {"host": "a", "pid": 1, "state": "running", "cpu_s": 0, "idle_s": 0}
    message = {"type": "stall_report", "op": "x", "ranks": {"3": table}}
    with pytest.raises(
        ProtocolError, match="has an element '3' that is an object whose"
    ):
        decode(message, "it", DRIVER_TO_RANK)
    table["ops"] = [{**make_operation().to_json(), "waiting_for": 1}]
    with pytest.raises(ProtocolError, match="'waiting_for' is 1, expected a list"):
        decode(message, "it", DRIVER_TO_RANK)
    table["ops"] = [make_operation().to_json()]
    frame = decode(message, "it", DRIVER_TO_RANK)
    assert isinstance(frame, StallTable)
    assert frame.ranks["3"].ops == [make_operation()]


@pytest.mark.parametrize(
    ("kind", "routes", "error"),
    [
        ("nonsense", [RANK_TO_DRIVER], "which a rank never sends to the driver"),
        ("exited", [RANK_TO_DRIVER], "which a rank never sends to the driver"),
        ("publish", [AGENT_TO_DRIVER], "which an agent never sends to the driver"),
        (
            "start",
            [AGENT_TO_RANK, DRIVER_TO_RANK],
            "which an agent or the driver never sends to a rank",
        ),
    ],
)
def test_frames_of_other_senders_are_refused(kind, routes, error):
    with pytest.raises(ProtocolError, match=f"it sent the frame '{kind}', {error}"):
        decode({"type": kind}, "it", *routes)


def test_a_newer_sender_may_add_fields():
    message = {**Publish(round=1, record={}).to_message(), "more": 1}
    assert decode(message, "it", RANK_TO_DRIVER) == Publish(round=1, record={})


def test_frames_are_immutable_and_differ_by_class():
    frame = RankLost(rank=1, host="a", cause="exit 1", text="lost")
    with pytest.raises(AttributeError, match="RankLost is immutable"):
        frame.rank = 2
    assert frame.replace(rank=2).rank == 2
    assert Beat() != Goodbye()
    with pytest.raises(TypeError, match="RankLost: missing or unknown field"):
        RankLost(rank=1)
    with pytest.raises(TypeError, match="RankLost: missing or unknown field"):
        frame.replace(nonsense=1)


def test_every_frame_has_a_route_and_a_meaning():
    for route, cls in EVERY:
        assert route.frames[cls.kind] is cls
        assert cls.__doc__
        json.dumps(cls.fields())
    assert len({(route.sender, route.receiver) for route in ROUTES}) == len(ROUTES)
    assert {Beat, TaskPart} <= set(DRIVER_TO_AGENT.frames.values())


def test_the_page_has_the_table_of_all_frames():
    done = subprocess.run(
        [sys.executable, "-m", "bfrun.frames"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    _, _, rest = PAGE.read_text().partition("<!-- frames: begin -->\n")
    table, _, _ = rest.partition("<!-- frames: end -->")
    assert table == done.stdout, "run python -m bfrun.frames, and paste it"
