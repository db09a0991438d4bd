"""Settings: order of precedence, strict parsing, errors, and the docs table."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bluecomm import config
from bluecomm.config import Config

ROOT = Path(__file__).parents[3]
NAMES = [setting.name for setting in dataclasses.fields(Config)]


def test_defaults():
    settings = Config.from_environment({})
    assert settings == Config()
    assert settings.rank is None
    assert settings.transport == "auto"
    assert settings.operation_timeout_s == 600.0
    assert settings.start_timeout_s == 300.0
    assert settings.bucket_bytes is None
    assert settings.tcp_streams == "auto"
    assert settings.eager_bytes == 4096
    assert settings.shm_staging_bytes == 8 * 1024 * 1024


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().transport = "tcp"


def test_arguments_override_variables_and_defaults():
    environ = {"BLUECOMM_BUCKET_BYTES": "5", "PATH": "/bin", "BLUECOM_RANK": "x"}
    assert Config.from_environment(environ).bucket_bytes == 5
    assert Config.from_environment(environ, bucket_bytes=7).bucket_bytes == 7
    assert Config.from_environment(environ, bucket_bytes=None).bucket_bytes == 5


def test_reads_every_kind_of_variable():
    settings = Config.from_environment(
        {
            "BLUECOMM_RANK": "1",
            "BLUECOMM_SIZE": "2",
            "BLUECOMM_TRANSPORT": "tcp",
            "BLUECOMM_START_TIMEOUT_S": "0.5",
            "BLUECOMM_AGENT_SOCKET": "/tmp/a b",
        }
    )
    assert (settings.rank, settings.size) == (1, 2)
    assert settings.transport == "tcp"
    assert settings.start_timeout_s == 0.5
    assert settings.agent_socket == "/tmp/a b"


def test_variables_of_the_plugin_are_ignored():
    assert Config.from_environment({"BLUECOMM_NET_STREAMS": "4"}) == Config()


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("BLUECOMM_TRANPORT", "BLUECOMM_TRANSPORT"),
        ("BLUECOMM_BUCKET_SIZE", "BLUECOMM_BUCKET_BYTES"),
        ("BLUECOMM_LOGLEVEL", "BLUECOMM_LOG_LEVEL"),
    ],
)
def test_unknown_variable_is_an_error_with_the_nearest_name(variable, nearest):
    with pytest.raises(ValueError, match=f"unknown variable {variable}.*{nearest}"):
        Config.from_environment({variable: "1"})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", " ", " 1", "1\n"])
def test_no_variable_may_be_empty_or_padded(name, text):
    with pytest.raises(ValueError, match=f"BLUECOMM_{name.upper()}: expected .*unset"):
        Config.from_environment({f"BLUECOMM_{name.upper()}": text})


@pytest.mark.parametrize("text", ["1.0", "1e3", "0x10", "1_000", "--2", "two", "²"])
def test_integers_are_strict(text):
    with pytest.raises(ValueError, match="BUCKET_BYTES: expected integer, got"):
        Config.from_environment({"BLUECOMM_BUCKET_BYTES": text})


@pytest.mark.parametrize("text", ["1s", "1_0.0", "ten", "1,5"])
def test_numbers_are_strict(text):
    with pytest.raises(ValueError, match="TIMEOUT_S: expected number, got"):
        Config.from_environment({"BLUECOMM_START_TIMEOUT_S": text})


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "0", "-3"])
def test_timeouts_are_positive_and_finite(text):
    with pytest.raises(ValueError, match=r"timeout_s .*at least 0\.001 and finite"):
        Config.from_environment({"BLUECOMM_START_TIMEOUT_S": text})


@pytest.mark.parametrize(
    ("text", "value"), [("0", False), ("1", True), ("false", False), ("TRUE", True)]
)
def test_booleans_are_words_or_digits(text, value):
    assert config._parse("BLUECOMM_X", text, (bool,)) is value


@pytest.mark.parametrize("text", ["", "2", "yes", "off", "None"])
def test_booleans_are_strict(text):
    with pytest.raises(ValueError, match=r"expected boolean .*true\), got"):
        config._parse("BLUECOMM_X", text, (bool,))


@pytest.mark.parametrize(("text", "count"), [("auto", 0), ("1", 1), ("16", 16)])
def test_streams_are_counted_or_chosen(text, count):
    settings = Config.from_environment({"BLUECOMM_TCP_STREAMS": text})
    assert settings.tcp_stream_count == count


@pytest.mark.parametrize("text", ["0", "17", "-1", "two", "01"])
def test_other_numbers_of_streams_are_refused(text):
    with pytest.raises(ValueError, match="auto or a number from 1 to 16, got"):
        Config.from_environment({"BLUECOMM_TCP_STREAMS": text})


def test_unknown_choice_names_the_choices():
    with pytest.raises(ValueError, match=r"transport .*auto, .*shm.* or \w+, got 'ib'"):
        Config.from_environment({"BLUECOMM_TRANSPORT": "ib"})


@pytest.mark.parametrize(
    ("override", "error", "text"),
    [
        ({"bucket_bytes": "2"}, TypeError, "bucket_bytes .*expected integer, got '2'"),
        ({"bucket_bytes": True}, TypeError, "expected integer, got True"),
        ({"bucket_bytes": 2.0}, TypeError, "expected integer, got 2.0"),
        ({"bucket_bytes": 0}, ValueError, "must be at least 1 and finite, got 0"),
        ({"start_timeout_s": "1"}, TypeError, "expected number, got '1'"),
        ({"log_level": "loud"}, ValueError, "expected trace, debug.* got 'loud'"),
        ({"log_level": 3}, TypeError, "expected trace, debug.* got 3"),
        ({"nonsense": 3}, TypeError, "nonsense"),
        ({"rank": 3}, ValueError, "rank is set without size"),
        ({"machine_size": 3}, ValueError, "machine_size is set without machine_rank"),
        (
            {"rank": 3, "size": 3},
            ValueError,
            "rank must be less than size, got 3 and 3",
        ),
        ({"rank": -1, "size": 3}, ValueError, "rank .*at least 0 and finite, got -1"),
    ],
)
def test_wrong_arguments_are_refused(override, error, text):
    with pytest.raises(error, match=text):
        Config.from_environment({}, **override)


@given(st.dictionaries(st.sampled_from(NAMES), st.text(max_size=20)))
def test_any_text_parses_or_names_its_variable(texts):
    environ = {f"BLUECOMM_{name.upper()}": text for name, text in texts.items()}
    error = None
    try:
        Config.from_environment(environ)
    except ValueError as caught:
        error = str(caught).lower()
    assert error is None or any(name in error for name in texts)


def test_each_setting_has_a_meaning():
    for setting in dataclasses.fields(Config):
        assert setting.metadata["meaning"].endswith("."), setting.name


def test_documentation_is_up_to_date():
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert text == config.render_documentation(), (
        "run: python -m bluecomm.config > docs/configuration.md"
    )
