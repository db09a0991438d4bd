"""A rank that trains while another one is lost, started again and let in.

``python -m tests.support.joining FOLDER FAULT ALGORITHM...``: rank 2 kills itself after
5 steps. With the fault ``donor`` or ``newcomer``, that one kills itself while the state
is handed over. With ``stopped`` the newcomer stops itself then; besides, rank 3 kills
itself when rank 2 does, and joins only after it. All ranks take 80 more steps once
nobody is missing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import bluecomm as bf
from tests.support.deadlines import DEADLINE_S, say, wait_until
from tests.support.marked_models import (
    begin_apart,
    make_optimizer,
    marks_of,
    parts_of,
    take_step,
)

VICTIM, LATER, KILLED_AT = 2, 3, 5
# Random matchings of 4 ranks need so many rounds to agree for certain.
AFTER = 80
# Steps of the others while the newcomer is not ready.
MEANWHILE = 20
# Value of a newcomer, far away from those of the others.
NEWCOMER = 100.0


def kill_me() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def is_first(folder: Path, what: str) -> bool:
    """Return whether nobody has asked the same before."""
    try:
        folder.joinpath(what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Fragile:
    """A part of the state that may end or stop a process while it is handed over.

    Args:
        folder: Folder of the test.
        fault: ``"newcomer"`` or ``"donor"`` ends that one, once; ``"stopped"`` stops
            the newcomer, once.
    """

    def __init__(self, folder: Path, fault: str) -> None:
        self.folder = folder
        self.fault = fault

    def may_hit(self, fault: str, number: int) -> None:
        """Send a signal to this process if the state is handed over with this fault."""
        is_handed_over = self.folder.joinpath("ready").exists()
        if self.fault == fault and is_handed_over and is_first(self.folder, fault):
            os.kill(os.getpid(), number)

    def __deepcopy__(self, _: object) -> Fragile:
        return self

    def __getstate__(self) -> dict[str, object]:
        self.may_hit("donor", signal.SIGKILL)
        return self.__dict__

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.may_hit("newcomer", signal.SIGKILL)


class First:
    """The first part that is handed over, so that the donor has more to send.

    Args:
        fragile: Knows whether the newcomer stops itself when it gets this part.
    """

    def __init__(self, fragile: Fragile) -> None:
        self.fragile = fragile

    def state_dict(self) -> dict[str, object]:
        """Return nothing."""
        return {}

    def load_state_dict(self, _: dict[str, object]) -> None:
        """Stop this process if that is the fault."""
        self.fragile.may_hit("stopped", signal.SIGSTOP)


def progress(folder: Path) -> int:
    """Return how many steps rank 0 or 1 has taken."""
    texts = [folder.joinpath(f"progress-{rank}").read_text() for rank in (0, 1)]
    return max(int(text or 0) for text in texts)


def main() -> None:
    """Train, and print the parameters."""
    folder, fault = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ["BLUECOMM_RANK"])
    is_newcomer = not is_first(folder, f"rank-{rank}")
    if is_newcomer and rank == LATER:
        # It begins to wait when rank 2 is started for the first time.
        path = folder / "joined"
        wait_until(path.exists, "rank 2 has not joined", limit_s=4 * DEADLINE_S)
    bf.init()
    if is_newcomer:
        begun = progress(folder)
        wait_until(lambda: progress(folder) >= begun + MEANWHILE, "the others stall")
    victims = (VICTIM, LATER) if fault == "stopped" else (VICTIM,)
    made = {name: make_optimizer(name) for name in sys.argv[3:]}
    if not is_newcomer:
        (folder / f"progress-{rank}").touch()
        bf.barrier()
    fragile = Fragile(folder, fault)
    state = bf.elastic.TorchState(
        first=First(fragile),
        fragile=fragile,
        step=0,
        left=AFTER,
        **parts_of(made),
    )
    calls: list[int] = []

    @bf.elastic.run
    def train(state: bf.elastic.TorchState) -> None:
        if not calls:
            begin_apart(made, NEWCOMER if is_newcomer else rank)
        calls.append(state.step)
        while state.left:
            take_step(made.values())
            state.step += 1
            if is_newcomer and rank == VICTIM:
                say(folder, "joined")
            elif rank in victims and not is_newcomer and state.step == KILLED_AT:
                kill_me()
            if rank < 2:
                path = folder / f"progress-{rank}.new"
                path.write_text(str(state.step))
                path.replace(folder / f"progress-{rank}")
            # All ranks get the same number in the same step.
            present = bf.allreduce(torch.ones(1), average=False).item()
            is_complete = present == bf.size() and state.step > KILLED_AT
            state.left = state.left - 1 if is_complete else AFTER
            state.check_host_updates()
            time.sleep(0.01)

    if is_newcomer:
        (folder / "ready").touch()
    train(state)
    found: dict[str, object] = {"rank": rank, "step": state.step, "calls": calls}
    for name, pair in made.items():
        found[name] = marks_of(pair, state.step)
    found["joined"] = [e.rank for e in bf.elastic.events() if e.kind == "joined"]
    found["lost"] = [e.rank for e in bf.elastic.events() if e.kind == "lost"]
    # Ranks and newcomers have called init equally often since they train together.
    bf.shutdown()
    bf.init()
    found["again"] = bf.allreduce(torch.ones(1), average=False).item()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
