"""A newcomer that makes its machine known."""

from bluecomm.data.stores.cluster.introduction import Introduction


class Newcomer:
    def __init__(self, others):
        self.now, self.has_joined, self.told = 0.0, True, []
        self.introduction = Introduction(
            others, lambda: self.has_joined, self.told.append, lambda: self.now
        )

    def step(self, now):
        """Return the ranks that are told, and when to step again."""
        self.now = now
        self.told.clear()
        again = self.introduction.step()
        return list(self.told), again


def test_ranks_are_told_until_they_answer_or_have_gone():
    newcomer = Newcomer([0, 2, 3])
    assert newcomer.step(0.0) == ([0, 2, 3], 5.0)
    newcomer.introduction.forget(2)
    assert newcomer.step(4.0) == ([], 5.0)
    assert newcomer.step(5.0) == ([0, 3], 10.0)
    for rank in (0, 3):
        newcomer.introduction.forget(rank)
    assert newcomer.step(10.0) == ([], float("inf"))


def test_nobody_is_told_before_the_newcomer_has_joined():
    newcomer = Newcomer([1])
    newcomer.has_joined = False
    assert newcomer.step(100.0) == ([], 100.5)
    newcomer.has_joined = True
    assert newcomer.step(100.5) == ([1], 105.5)


def test_the_attempts_end():
    newcomer = Newcomer([1])
    told = 0
    for now in range(200):
        told += len(newcomer.step(float(now))[0])
    assert told == 12
    assert newcomer.step(200.0)[1] == float("inf")


def test_a_rank_that_is_no_newcomer_tells_nobody():
    assert Newcomer([]).step(0.0) == ([], float("inf"))
