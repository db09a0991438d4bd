"""Access to the secret of a job, and the errors of those who have none."""

import logging

import pytest

from bluecomm.errors import BluecommError
from bluecomm.runtime.rendezvous import secret
from bluecomm.runtime.rendezvous.secret import SecretHandover
from tests.support.stand_in import replace_in


def handover(file=None, folder=""):
    return SecretHandover(file, str(folder), channel="store X")


def private_file(path, content=bytes(32), mode=0o600):
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_one_machine_shares_the_secret_in_a_private_file(tmp_path, caplog):
    mine = handover(folder=tmp_path)
    secret, offer = mine.give("start", one_machine=True)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret.hex() not in offer
    assert handover().take("start", offer) == secret
    mine.forget()
    assert not path.exists()
    assert not caplog.records


def test_several_machines_without_a_file_are_warned(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "bluecomm"):
        secret, offer = handover().give("start", one_machine=False)
    assert handover().take("start", offer) == secret
    assert "store X" in caplog.text
    assert "BLUECOMM_SECRET_FILE" in caplog.text


def test_the_users_file_gives_another_secret_at_each_start(tmp_path, caplog):
    file = private_file(tmp_path / "mine")
    first, offer = handover(file).give("first", one_machine=False)
    assert offer == ""
    assert handover(file).take("first", offer) == first
    assert handover(file).take("second", offer) != first
    assert not caplog.records


@pytest.mark.parametrize(
    ("content", "mode", "match"),
    [
        (bytes(32), 0o640, "only its owner can read, but its mode is -rw-r-----"),
        (bytes(15), 0o600, "has 15 bytes, but needs at least 16"),
    ],
)
def test_an_unusable_file_is_refused(tmp_path, content, mode, match):
    file = private_file(tmp_path / "mine", content, mode)
    with pytest.raises(BluecommError, match=match):
        handover(file).give("start", one_machine=True)


def test_a_file_of_another_user_or_none_is_refused(tmp_path, monkeypatch):
    file = private_file(tmp_path / "mine")
    replace_in(monkeypatch, secret, "os", geteuid=lambda: 12345)
    with pytest.raises(BluecommError, match="belongs to user"):
        handover(file).give("start", one_machine=True)
    with pytest.raises(BluecommError, match="cannot be read: No such file"):
        handover(str(tmp_path / "none")).give("start", one_machine=True)


def test_a_file_on_some_ranks_only_is_refused(tmp_path):
    file = private_file(tmp_path / "mine")
    _, offer = handover(file).give("start", one_machine=True)
    with pytest.raises(BluecommError, match="set only on some ranks"):
        handover(folder=tmp_path).take("start", offer)
    _, offer = handover(folder=tmp_path).give("start", one_machine=True)
    with pytest.raises(BluecommError, match="set only on some ranks"):
        handover(file).take("start", offer)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(
        BluecommError, match=r"'/nonexistent/.*', cannot be written: No"
    ):
        handover(folder="/nonexistent").give("start", one_machine=True)
