"""The records by which another bfrun finds a job."""

import errno
import json
import os
import socket
import stat
import tempfile

import pytest

from bfrun.driver import job_record
from bfrun.driver.job_record import HeldRecord, HostRecord, NoSuchJob, RunningJob
from bfrun.errors import LaunchError
from tests.support.stand_in import replace_in


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """The socket of a living agent; records are in a folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "driver"))
        listener.listen()
        yield listener


def make_record(agent, name="run_1"):
    ranks = [{"rank": 0}, {"rank": 1}]
    path = agent.getsockname()
    host = HostRecord(name="localhost", socket=path, guard_pid=1, ranks=ranks)
    return RunningJob(
        name=name,
        version="1",
        pid=7,
        key="ab",
        started=1.0,
        hosts=[host],
        settings={"command": ["x"]},
    )


def test_a_record_is_private_and_goes_with_its_job(agent, tmp_path):
    held = HeldRecord.create(make_record(agent))
    (folder,) = tmp_path.glob("bfrun-jobs-*")
    (path,) = folder.iterdir()
    assert [stat.S_IMODE(it.stat().st_mode) for it in (folder, path)] == [0o700, 0o600]
    assert job_record.find_jobs() == [(held.record, True)]
    held.remove()
    held.release()
    assert not folder.exists()
    assert job_record.find_jobs() == []


def test_a_name_is_taken_while_its_job_runs(agent):
    held = HeldRecord.create(make_record(agent))
    with pytest.raises(LaunchError, match="--job-name run_1: a job of this name runs"):
        HeldRecord.create(make_record(agent))
    held.release()  # detached
    with pytest.raises(LaunchError, match="--job-name run_1: a job of this name runs"):
        HeldRecord.create(make_record(agent))
    agent.close()
    HeldRecord.create(held.record).remove()


def test_one_driver_takes_over_once_the_other_has_ended(agent):
    held = HeldRecord.create(make_record(agent))
    assert HeldRecord.take_over("run_1") is None
    held.release()
    taken = HeldRecord.take_over("run_1")
    taken.note_driver()
    assert taken.record == held.record.replace(pid=os.getpid())
    assert job_record.read_record("run_1").pid == os.getpid()
    assert HeldRecord.take_over("run_1") is None
    taken.remove()
    for find in (HeldRecord.take_over, job_record.read_record):
        with pytest.raises(NoSuchJob, match="no job 'run_1' of this user runs on"):
            find("run_1")


def test_a_detached_job_keeps_its_record_as_long_as_it_lives(agent, tmp_path):
    held = HeldRecord.create(make_record(agent))
    held.release()
    (path,) = tmp_path.glob("bfrun-jobs-*/*")
    os.utime(path, (0, 0))
    assert job_record.find_jobs() == [(held.record, False)]
    agent.close()
    assert job_record.find_jobs() == []
    assert not path.exists()


def test_a_record_keeps_its_size_and_survives_a_full_disk(agent, tmp_path, monkeypatch):
    HeldRecord.create(make_record(agent)).release()
    (path,) = tmp_path.glob("bfrun-jobs-*/*")
    before = path.read_bytes()
    taken = HeldRecord.take_over("run_1")
    with monkeypatch.context() as full:
        full.setattr(job_record, "write_all", fail)
        taken.note_driver()
    assert path.read_bytes() == before
    taken.note_driver()
    after = path.read_bytes()
    assert len(after) == len(before)
    assert after.split(b'"pid"')[0] == before.split(b'"pid"')[0]
    taken.remove()


def fail(fd, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_new_record_that_cannot_be_written_or_locked(agent, tmp_path, monkeypatch):
    monkeypatch.setattr(job_record, "write_all", fail)
    with pytest.raises(LaunchError, match="cannot be written: No space left"):
        HeldRecord.create(make_record(agent))
    assert list(tmp_path.glob("bfrun-jobs-*")) == []

    def refuse(fd, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    replace_in(monkeypatch, job_record, "fcntl", flock=refuse)
    descriptors = set(os.listdir("/proc/self/fd"))
    with pytest.raises(LaunchError, match="cannot be written: No locks available"):
        HeldRecord.create(make_record(agent))
    assert set(os.listdir("/proc/self/fd")) <= descriptors


def test_a_record_of_another_format_stays_while_its_job_lives(agent, tmp_path):
    HeldRecord.create(make_record(agent)).release()
    (path,) = tmp_path.glob("bfrun-jobs-*/*")
    other = {"hosts": [{"socket": agent.getsockname()}], "version": 9}
    path.write_text(json.dumps(other))
    assert job_record.find_jobs() == []
    with pytest.raises(LaunchError, match="another version of bfrun has written it"):
        HeldRecord.take_over("run_1")
    with pytest.raises(LaunchError, match="a job of this name runs already"):
        HeldRecord.create(make_record(agent))
    assert json.loads(path.read_text()) == other
    agent.close()
    assert job_record.find_jobs() == []
    assert not path.exists()


def test_files_that_are_no_records_are_left_alone(agent, tmp_path):
    held = HeldRecord.create(make_record(agent))
    (folder,) = tmp_path.glob("bfrun-jobs-*")
    (folder / "text.json").write_text("x")
    (folder / "text.json").chmod(0o600)
    (folder / "link.json").symlink_to(folder / "run_1.json")
    (folder / "shared.json").touch(0o644)
    (folder / "shared.json").chmod(0o644)
    assert job_record.find_jobs() == [(held.record, True)]
    assert len(list(folder.iterdir())) == 4
    with pytest.raises(LaunchError, match="does not belong to this user alone"):
        HeldRecord.take_over("shared")
    held.remove()


def test_a_record_that_is_being_written_stays(agent, tmp_path):
    held = HeldRecord.create(make_record(agent))
    (path,) = tmp_path.glob("bfrun-jobs-*/*")
    os.truncate(path, 0)
    assert job_record.find_jobs() == []
    assert path.exists()
    held.remove()


def test_a_folder_that_others_can_enter_is_refused(agent, tmp_path):
    HeldRecord.create(make_record(agent)).release()
    (folder,) = tmp_path.glob("bfrun-jobs-*")
    folder.chmod(0o2700)  # its parent has set this bit
    assert len(job_record.find_jobs()) == 1
    folder.chmod(0o755)
    with pytest.raises(LaunchError, match="not a folder that only this user can enter"):
        job_record.find_jobs()


def test_a_record_of_other_hosts_stays_as_long_as_their_agents_may_live(
    agent, tmp_path
):
    record = make_record(agent)
    record = record.replace(
        hosts=[record.hosts[0].replace(is_remote=True)],
        settings={"detached_limit_s": 100.0, "link_timeout_s": 30.0},
    )
    held = HeldRecord.create(record)
    agent.close()
    held.touch()
    held.release()
    (path,) = tmp_path.glob("bfrun-jobs-*/*")
    assert job_record.find_jobs() == [(record, False)]
    os.utime(path, (0, 0))
    assert job_record.find_jobs() == []
    assert not path.exists()
