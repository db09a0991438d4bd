"""``ibfrun`` with engines on two hosts."""

from __future__ import annotations

from pathlib import Path

import ipyparallel
import pytest

from bfrun.notebook import interrupt_hanged_processes
from tests.support.cluster import Cluster
from tests.support.deadlines import hear
from tests.support.notebook import connected, notebook_in

pytestmark = pytest.mark.cluster


def where() -> tuple[str, float]:
    import socket

    import torch

    import bluecomm as bf

    bf.init()
    return socket.gethostname(), float(bf.allreduce(torch.tensor(float(bf.rank()))))


def hang(folder: str) -> None:
    import time
    from pathlib import Path

    Path(folder, "hanging").touch()
    time.sleep(1000)


def test_engines_on_two_hosts(cluster: Cluster, tmp_path: Path) -> None:
    with notebook_in(tmp_path) as book:
        hosts = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:1,node2:1"]
        book.start(*hosts)
        with connected() as client:
            assert client[:].apply_sync(where) == [("node1", 0.5), ("node2", 0.5)]
            hung = client[1].apply_async(hang, str(tmp_path))
            hear(tmp_path, "hanging")
            while not hung.ready():
                interrupt_hanged_processes()
            with pytest.raises(ipyparallel.error.RemoteError, match="KeyboardInt"):
                hung.get()
        assert book.ibfrun("stop").returncode == 0
        assert "0 processes left on 2 hosts" in book.log
        cluster.wait_until_empty()
