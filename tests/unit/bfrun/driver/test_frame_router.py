"""Output that an agent sends again is acknowledged once."""

from types import SimpleNamespace

from bfrun.driver.frame_router import FrameRouter
from bfrun.frames.driver_to_agent import OutputShown


def test_output_that_is_sent_again_is_acknowledged_once():
    sent = []
    session = SimpleNamespace(send=sent.append, is_reached=True)
    host = SimpleNamespace(processes=[SimpleNamespace(rank=0), SimpleNamespace(rank=1)])
    router = FrameRouter(SimpleNamespace(hosts=[host]), [session])

    def show(rank, nbytes):
        router.note_shown(rank, nbytes)
        router.acknowledge()

    router.note_arrived(0, 30)
    show(0, 10)
    assert sent == [OutputShown(rank=0, nbytes=10)]
    router.note_repeated([0, 1])  # 20 bytes are still to be shown
    router.note_arrived(0, 25)
    show(0, 15)
    assert len(sent) == 1
    show(0, 12)
    assert sent[1] == OutputShown(rank=0, nbytes=7)
    show(0, 18)
    assert sent[2] == OutputShown(rank=0, nbytes=18)
    router.note_arrived(1, 5)
    show(1, 5)
    assert sent[3] == OutputShown(rank=1, nbytes=5)
    assert router.reaches(0)
