"""Successful jobs on this machine, with the control plane in use."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import bfrun
from bfrun.errors import JobFailed
from tests.support.launch import launched, python, run_bfrun

pytestmark = pytest.mark.mp

CLIENT = "from tests.support.rank_client import RankClient; client = RankClient(); "


def lines_of(text):
    return sorted(line for line in text.splitlines() if line)


def test_plain_scripts_run_with_the_usual_variables(tmp_path):
    body = (
        "import os; print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK',"
        " 'LOCAL_WORLD_SIZE', 'BLUECOMM_RANK', 'BLUECOMM_SIZE', 'MASTER_ADDR',"
        " 'NCCL_NET')))"
    )
    job = run_bfrun(tmp_path, "-np", "3", "--enable-net", *python(body))
    assert job.process.returncode == 0
    assert lines_of(job.out) == [
        f"[{rank}] {rank} 3 {rank} 3 {rank} 3 127.0.0.1 BlueComm" for rank in range(3)
    ]


def test_verbose_ranks_name_their_launcher_and_links(tmp_path):
    body = "import bluecomm as bf; bf.init()"
    job = run_bfrun(tmp_path, "-v", "-np", "2", *python(body))
    for rank in range(2):
        said = rf"INFO: rank {rank} of 2 on .* \(bfrun\); transports "
        assert re.search(said + rf"{{{1 - rank}: 'shm'}}", job.err), job.err


def test_every_rank_has_the_same_free_master_port(tmp_path):
    body = "import os; print(os.environ['MASTER_PORT'])"
    job = run_bfrun(tmp_path, "-np", "3", *python(body))
    ports = {line.split()[1] for line in lines_of(job.out)}
    assert len(ports) == 1
    assert 1024 < int(ports.pop()) < 65536


def test_the_users_own_master_address_wins(tmp_path):
    body = "import os; print(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])"
    options = ["-np", "1", "-x", "MASTER_ADDR=10.9.8.7", "-x", "MASTER_PORT=123"]
    job = run_bfrun(tmp_path, *options, *python(body))
    assert job.out == "[0] 10.9.8.7 123\n"


def test_foreign_launch_variables_are_removed(tmp_path, monkeypatch):
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_RANK", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "1")
    body = (
        "import os; print([n for n in os.environ if n[:4] in ('OMPI', 'PMI_', 'SLUR')])"
    )
    job = run_bfrun(tmp_path, "-np", "1", *python(body))
    assert job.out == "[0] []\n"


def test_ranks_meet_through_the_driver(tmp_path):
    body = CLIENT + (
        "import json; first = client.publish({'of': client.rank}); "
        "second = client.publish(client.rank, 1); client.send('goodbye'); "
        "print(json.dumps([first['records'], second['records'], client.welcome]))"
    )
    job = run_bfrun(tmp_path, "-np", "3", *python(body))
    assert job.process.returncode == 0, job.err
    answers = [json.loads(line.split(" ", 1)[1]) for line in lines_of(job.out)]
    for rank, (first, second, welcome) in enumerate(answers):
        assert first == [{"of": 0}, {"of": 1}, {"of": 2}]
        assert second == [0, 1, 2]
        assert (welcome["rank"], welcome["size"]) == (rank, 3)
        assert (welcome["local_rank"], welcome["machine_rank"]) == (rank, 0)
        assert welcome["host"] == "localhost"
        assert len(bytes.fromhex(welcome["secret"])) == 32
    assert (
        len(
            {
                json.dumps([a[2][k] for k in ("secret", "job", "machine")])
                for a in answers
            }
        )
        == 1
    )


def test_a_rank_that_never_comes_is_named(tmp_path):
    body = (
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    while not os.path.exists('missed'): time.sleep(0.05)\n"
        "else:\n"
        "    from tests.support.rank_client import RankClient\n"
        "    print(RankClient().publish(0)['text'])\n"
        "    open('missed', 'w').close()\n"
    )
    # The agents' start timeout has passed, too. On a busy machine they need seconds.
    job = run_bfrun(tmp_path, "-np", "2", "--start-timeout", "20", *python(body))
    assert "rank 1 did not call bluecomm.init within 20 s" in job.out


def test_a_rank_that_ended_before_init_is_named_at_once(tmp_path):
    body = (
        "import os, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    from tests.support.rank_client import RankClient\n"
        "    print(RankClient().publish(0)['text'])\n"
    )
    job = run_bfrun(tmp_path, "-np", "2", *python(body))
    assert "rank 1 on localhost had finished (exit 0)" in job.out
    assert job.process.returncode == 0


def test_a_finished_rank_is_announced(tmp_path):
    body = CLIENT + (
        "client.publish(0)\n"
        "if client.rank == 0: client.send('goodbye')\n"
        "if client.rank == 2: print(client.receive('finished'), client.receive("
        "'finished'))\n"
    )
    job = run_bfrun(tmp_path, "-np", "3", *python(body))
    assert job.process.returncode == 0
    clean = "'cause': '', 'text': '', 'stay': 0}"
    assert f"'rank': 0, 'host': 'localhost', {clean}" in job.out
    assert "'rank': 1, 'host': 'localhost', 'cause': 'exit 0'" in job.out


def test_a_second_process_cannot_claim_a_rank(tmp_path):
    body = CLIENT + (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', "
        "'from tests.support.rank_client import *; print(RankClient().welcome)'])"
    )
    job = run_bfrun(tmp_path, "-np", "1", *python(body))
    assert "refused" in job.out
    assert "claims rank 0, which process" in job.out
    assert '__name__ == "__main__"' in job.out


def test_a_rank_may_connect_again(tmp_path):
    body = CLIENT + (
        "client.close(); again = RankClient(); print(again.publish(5)['records'])"
    )
    job = run_bfrun(tmp_path, "-np", "1", *python(body))
    assert job.out == "[0] [5]\n"


def test_a_stall_report_has_the_operations_of_every_rank(tmp_path):
    body = CLIENT + (
        "import json\n"
        "from tests.support.frames import make_operation\n"
        "client.publish(0)\n"
        "if client.rank == 0: client.send('stall', op='x')\n"
        "query = client.receive('query_pending')\n"
        "ops = [make_operation(name=f'op{client.rank}').to_json()]\n"
        "client.send('pending', id=query['id'], ops=ops)\n"
        "if client.rank == 0: print(json.dumps(client.receive('stall_report')))\n"
        "client.publish(0, 1)\n"
    )
    job = run_bfrun(tmp_path, "-np", "3", *python(body))
    report = json.loads(job.out.split(" ", 1)[1])
    assert report["op"] == "x"
    names = [report["ranks"][str(r)]["ops"][0]["name"] for r in range(3)]
    assert names == ["op0", "op1", "op2"]
    assert report["ranks"]["1"]["state"] == "running"
    assert report["ranks"]["1"]["host"] == "localhost"


def test_invalid_frames_of_a_rank_harm_no_other(tmp_path):
    body = CLIENT + (
        "client.send('publish'); client.send('nonsense'); client.send('pending', id=[])"
        "; print(client.publish(1)['records'])"
    )
    job = run_bfrun(tmp_path, "-np", "2", *python(body))
    assert lines_of(job.out) == ["[0] [1, 1]", "[1] [1, 1]"]
    assert "sent an invalid 'publish': field 'round' is missing" in job.err
    assert (
        "sent the frame 'nonsense', which a rank never sends to the driver" in job.err
    )
    assert "sent an invalid 'pending': field 'id' is [], expected an int" in job.err


def test_a_frame_that_is_too_large_to_pass_on_is_refused(tmp_path):
    body = CLIENT + (
        "from bfrun.channel import MAX_FRAME_NBYTES as most\n"
        "client.send('publish', round=0, record='x' * (most - 60))\n"
        "print(client.publish(1, 1)['records'])\n"
    )
    job = run_bfrun(tmp_path, "-np", "1", *python(body))
    assert job.out == "[0] [1]\n"
    assert "rank 0 sent an invalid 'publish': frame 'rank' has 167" in job.err


def test_standard_input_goes_to_rank_0_only(tmp_path):
    body = "import os, sys; print(os.environ['RANK'], len(sys.stdin.read()))"
    with launched(
        tmp_path, "-np", "2", "--stdin", *python(body), stdin=subprocess.PIPE
    ) as job:
        assert job.process.stdin is not None
        job.process.stdin.write(b"x" * 300_000)
        job.process.stdin.close()
        assert job.wait() == 0
        assert lines_of(job.out) == ["[0] 0 300000", "[1] 1 0"]


@pytest.mark.parametrize("body", ["input()", "breakpoint()\npass"])
def test_a_rank_without_input_gets_a_hint(body, tmp_path):
    job = run_bfrun(tmp_path, "-np", "1", *python(body))
    assert job.process.returncode == 1
    assert "hint: it read its standard input, which is empty" in job.err
    assert "--stdin" in job.err


def test_output_dir_holds_a_file_per_rank_and_stream(tmp_path):
    body = "import sys; print('out'); print('\\xe9\\r\\n', end='', file=sys.stderr)"
    options = ["-np", "2", "--output-dir", "logs", "--only-rank", "1"]
    job = run_bfrun(tmp_path, *options, *python(body))
    assert job.out == "[1] out\n"
    found = re.search("^bfrun: logs of the ranks: (logs/.*)$", job.err, re.MULTILINE)
    assert found is not None
    for folder in (tmp_path / found[1], tmp_path / "logs/latest"):
        for rank in range(2):
            assert (folder / f"rank{rank}.stdout").read_text() == "out\n"
            assert (folder / f"rank{rank}.stderr").read_bytes() == b"\xc3\xa9\r\n"


def test_much_output_arrives_whole(tmp_path):
    body = "for i in range(40000): print('x' * 50, i)"
    job = run_bfrun(tmp_path, "-np", "2", *python(body))
    for rank in range(2):
        mine = [ln for ln in job.out.splitlines() if ln.startswith(f"[{rank}]")]
        assert mine == [f"[{rank}] {'x' * 50} {i}" for i in range(40000)]


@pytest.mark.many_ranks
def test_many_trivial_ranks_start_and_end(tmp_path):
    job = run_bfrun(tmp_path, "-np", "64", *python("print('hi')"))
    assert job.process.returncode == 0
    assert len(lines_of(job.out)) == 64


@pytest.mark.many_ranks
def test_hundreds_of_ranks_start_and_end(tmp_path):
    job = run_bfrun(tmp_path, "-np", "200", "true")
    assert job.process.returncode == 0, job.err


def test_ranks_that_do_not_fit_are_refused(tmp_path):
    command = [sys.executable, "-m", "bfrun", "-np", "100", "touch", "started"]
    limited = ["bash", "-c", 'ulimit -n 200; exec "$@"', "bash", *command]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    told = r"starting 100 ranks takes 300 more open files, but RLIMIT_NOFILE .* is 200"
    assert re.search(told, done.stderr), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_run_returns_the_results_in_rank_order(capfd):
    factor = 3

    def body(x, *, y):
        import os

        print("here")
        return x * factor + y, int(os.environ["RANK"]), b"z" * 5_000_000

    results = bfrun.run(body, (10,), {"y": 1}, np=3)
    assert [result[:2] for result in results] == [(31, 0), (31, 1), (31, 2)]
    assert all(len(result[2]) == 5_000_000 for result in results)
    assert "[2] here" in capfd.readouterr().out


def test_run_raises_with_the_report():
    def body():
        raise ValueError("no luck")

    with pytest.raises(JobFailed, match="no luck") as caught:
        bfrun.run(body, np=2)
    assert caught.value.exit_code == 1


def test_run_says_when_a_rank_gives_no_result():
    def body():
        import os

        os._exit(0)

    with pytest.raises(JobFailed, match="rank 0 ended without a result"):
        bfrun.run(body, np=1)


def test_run_says_when_the_call_or_the_result_cannot_be_pickled():
    with pytest.raises(TypeError, match=r"the call of .* cannot be pickled"):
        bfrun.run(print, (sys._getframe(),), np=1)
    with pytest.raises(JobFailed, match="result of rank 0, of type frame"):
        bfrun.run(lambda: sys._getframe(), np=1)


def test_run_refuses_unknown_settings():
    with pytest.raises(TypeError, match=r"unknown settings \['tiemout'\]"):
        bfrun.run(print, np=1, tiemout=3)


def test_run_says_what_is_wrong_with_its_arguments():
    with pytest.raises(TypeError, match="fn must be a function, got 3"):
        bfrun.run(3, np=1)
    with pytest.raises(TypeError, match=r"np must be an integer, got 1\.5"):
        bfrun.run(print, np=1.5)
    with pytest.raises(ValueError, match="np must be at least 1, got 0"):
        bfrun.run(print, np=0)
