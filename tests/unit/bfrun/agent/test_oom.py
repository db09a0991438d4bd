import pytest

from bfrun.agent.oom import OomWatch


def watch(tmp_path, line, files):
    (tmp_path / "cgroup").write_text(line)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return OomWatch(str(tmp_path / "cgroup"), str(tmp_path / "fs"))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("0::/job\n", "job/memory.events"),
        ("0::/job/of/host\n", "memory.events"),
        ("0::/job\n", "unified/job/memory.events"),
        ("4:memory:/job\n0::/\n", "memory/job/memory.oom_control"),
        ("4:cpu,memory:/job\n", "memory/memory.oom_control"),
    ],
)
def test_a_risen_counter_is_evidence(tmp_path, line, name):
    oom = watch(tmp_path, line, {name: "oom 1\noom_kill 2\n"})
    assert oom.evidence() is None
    (tmp_path / "fs" / name).write_text("oom 3\noom_kill 4\n")
    assert "out-of-memory killer ended 2 processes of" in oom.evidence()
    assert name in oom.evidence()


def test_no_counter_no_evidence(tmp_path):
    assert watch(tmp_path, "0::/job\n", {}).evidence() is None
    assert OomWatch(str(tmp_path / "none"), str(tmp_path)).evidence() is None


def test_a_counter_that_vanished_is_no_evidence(tmp_path):
    oom = watch(tmp_path, "0::/\n", {"memory.events": "oom_kill 0\n"})
    (tmp_path / "fs/memory.events").unlink()
    assert oom.evidence() is None
