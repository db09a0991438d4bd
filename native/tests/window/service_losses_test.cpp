// A WindowService whose peer is lost, in a job that survives losses.
#include <memory>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/window/one_rank.h"
#include "tests/window/windows.h"
#include "window/service.h"

namespace bluecomm::test {
namespace {

// A rank with a window whose peer can be lost.
class Survivor {
 public:
  Survivor() : rank(WindowService::Survival{[this](int) { return has_ended; }}) {
    rank.receive(WindowAction::kOpen, 0);
    window = rank.make_window();
    const auto opened = rank.service.open(window, Clock::time_point::max());
    CHECK(opened->done());
    CHECK(rank.requests.release(opened->id()));
  }

  // The link to the peer ends.
  void lose() {
    rank.peers.gone = true;
    rank.poll();
  }
  // Operations go on without the peer.
  void drop() {
    rank.peers.dropped = true;
    lose();
  }
  // Returns the average of 2 and the peer's value.
  double average() {
    std::vector<double> result(1);
    rank.stats.replaced(window->update(std::as_writable_bytes(std::span(result)),
                                       bytes_of({2.0}), {0.5, {{kPeer, 0.5}}}));
    return result[0];
  }

  bool has_ended = false;
  WindowRank rank;
  std::shared_ptr<Window> window;
};

TEST(window_losses, requests_under_way_to_a_lost_rank_end_without_effect) {
  Survivor it;
  const std::vector<double> x{5.0};
  const auto first = it.rank.put(it.window, bytes_of(x));
  const auto second = it.rank.put(it.window, bytes_of(x));
  const auto got = it.rank.get(it.window, Clock::time_point::max());
  const auto locked = it.rank.service.lock(it.window, kPeer, Clock::time_point::max());
  it.lose();
  it.rank.poll();
  // This rank may be the one that is cut off.
  for (const auto& request : {first, second, got, locked}) CHECK(!request->done());
  it.drop();
  for (const auto& request : {first, second, got, locked}) CHECK(request->succeeded());
  CHECK_EQ(it.rank.stats.dropped_count(), 4U);
  CHECK(it.rank.stats.edges(kPeer).empty() ||
        it.rank.stats.edges(kPeer)[0].second.messages_sent == 0);
  CHECK(!it.rank.requests.outstanding());
  CHECK(!it.rank.service.outstanding());
}

TEST(window_losses, later_requests_end_at_once) {
  Survivor it;
  it.drop();
  const std::vector<double> x{5.0};
  CHECK(it.rank.put(it.window, bytes_of(x))->succeeded());
  CHECK(it.rank.get(it.window, Clock::time_point::max())->succeeded());
  const auto locked = it.rank.service.lock(it.window, kPeer, Clock::time_point::max());
  CHECK(locked->succeeded());
  it.rank.service.unlock(it.window, kPeer, locked->id());
  CHECK_EQ(it.rank.stats.dropped_count(), 3U);
  CHECK(it.window->targets().empty());
}

TEST(window_losses, a_mutex_that_a_lost_rank_holds_is_granted_once) {
  Survivor it;
  it.rank.receive(WindowAction::kLock, 1);  // the peer gets the mutex
  it.rank.receive(WindowAction::kLock, 2);  // and waits for it as well
  const auto first = it.rank.service.lock(it.window, 0, Clock::time_point::max());
  const auto second = it.rank.service.lock(it.window, 0, Clock::time_point::max());
  it.lose();
  CHECK(!first->done());
  it.drop();
  CHECK(first->succeeded());
  CHECK(!second->done());
  it.rank.poll();
  CHECK(!second->done());
  it.rank.service.unlock(it.window, 0, first->id());
  CHECK(second->succeeded());
  it.rank.service.unlock(it.window, 0, second->id());
  CHECK(!it.window->mutex_queue.holder().has_value());
}

TEST(window_losses, what_a_lost_rank_has_sent_as_a_whole_counts_once) {
  Survivor it;
  std::vector<double> theirs{8.0};
  const auto bytes = std::as_writable_bytes(std::span(theirs));
  it.rank.receive(WindowAction::kPut, 1, bytes, -1, bytes.size());
  it.drop();
  CHECK_EQ(it.window->versions().at(kPeer), 1U);
  CHECK_EQ(it.average(), 5.0);
  CHECK_EQ(it.rank.stats.replaced_count(), 0U);
  CHECK_EQ(it.window->versions().at(kPeer), 0U);
  CHECK_EQ(it.average(), 2.0);
  CHECK_EQ(it.rank.stats.replaced_count(), 1U);
}

TEST(window_losses, what_a_lost_rank_has_sent_in_part_is_discarded) {
  Survivor it;
  std::vector<double> theirs{8.0};
  const auto bytes = std::as_writable_bytes(std::span(theirs));
  it.rank.receive(WindowAction::kPut, 1, bytes, -1, bytes.size() / 2);
  it.drop();
  CHECK_EQ(it.average(), 2.0);
}

TEST(window_losses, windows_that_are_made_later_have_no_edges_to_lost_ranks) {
  Survivor it;
  it.drop();
  it.rank.service.remove(*it.window);
  const auto window = it.rank.make_window();
  const auto opened = it.rank.service.open(window, Clock::time_point::max());
  CHECK(opened->succeeded());
  CHECK(window->targets().empty());
  it.window = window;
  CHECK_EQ(it.average(), 2.0);
  CHECK_EQ(it.rank.stats.dropped_count(), 0U);
}

TEST(window_losses, memory_is_kept_while_a_lost_rank_may_write_into_it) {
  Survivor it;
  const std::weak_ptr<Window> memory = it.window;
  it.rank.service.remove(*it.window);
  it.window.reset();
  CHECK(!memory.expired());  // others may not have removed theirs
  it.lose();
  it.rank.service.release_removed();
  CHECK(!memory.expired());
  it.has_ended = true;
  it.rank.service.release_removed();
  CHECK(memory.expired());
}

TEST(window_losses, removed_windows_are_freed_when_nobody_is_lost) {
  Survivor it;
  const std::weak_ptr<Window> memory = it.window;
  it.rank.service.remove(*it.window);
  it.window.reset();
  it.rank.service.release_removed();
  CHECK(memory.expired());
}

TEST(window_losses, an_excluded_rank_changes_nothing_of_the_others) {
  Survivor it;
  const Window::Memory theirs = allocate_aligned(64 << 10);
  Mailbox::initialize(*theirs);
  it.rank.receive(WindowAction::kShareMailbox, 0, *theirs);
  const std::vector<double> x{5.0};
  CHECK(it.window->put_directly(kPeer, {bytes_of(x), 1.0, false, {}}));
  it.rank.service.close(Code::kPeerLost, "excluded");
  CHECK(!it.window->put_directly(kPeer, {bytes_of(x), 1.0, false, {}}));
  const auto request = it.rank.put(it.window, bytes_of(x));
  CHECK(request->status().code == Code::kPeerLost);
  CHECK_EQ(request->status().text, "win_put 'x' on rank 0: excluded");
}

// --- New edges -----------------------------------------------------------------------

TEST(window_losses, a_rank_may_be_put_to_as_soon_as_it_has_a_mailbox) {
  WindowRank rank(WindowService::Survival{[](int) { return false; }});
  const auto window = rank.make_window(2);
  CHECK(rank.service.open(window, Clock::time_point::max())->done());
  rank.service.connect(window, window->add_in_edges({kPeer}, bytes_of({3.0})), {kPeer});
  CHECK(window->sources() == std::vector{kPeer});
  CHECK(window->targets().empty());
  REQUIRE(!rank.peers.dead.posted.empty());
  CHECK(rank.peers.dead.posted.back().action == WindowAction::kAccepts);
  rank.receive(WindowAction::kAccepts, 0);
  CHECK(window->targets() == std::vector{kPeer});
  std::vector<double> result(1);
  window->update(std::as_writable_bytes(std::span(result)), bytes_of({1.0}),
                 {0.5, {{kPeer, 0.5}}});
  CHECK_EQ(result[0], 2.0);
  // Neither edge is made a second time.
  CHECK(window->add_in_edges({kPeer}, bytes_of({4.0})).empty());
  CHECK_THROWS(window->add_in_edges({2}, bytes_of({4.0})), std::invalid_argument,
               "gets no edge from rank 2");
}

TEST(window_losses, a_value_that_is_shared_early_is_read_once_there_is_an_edge) {
  WindowRank rank(WindowService::Survival{[](int) { return false; }});
  const auto window = rank.make_window(2);
  CHECK(rank.service.open(window, Clock::time_point::max())->done());
  const Window::Memory theirs = allocate_aligned(64 << 10);
  PublishedValue::initialize(*theirs, 1);
  PublishedValue(*theirs, sizeof(double), 1).publish(bytes_of({7.0}), 1.0);
  rank.receive(WindowAction::kShareValue, 0, *theirs, 0);
  CHECK(!window->get_directly(kPeer, 1.0, false));
  rank.service.connect(window, window->add_in_edges({kPeer}, bytes_of({1.0})), {});
  CHECK(window->get_directly(kPeer, 1.0, false));
  std::vector<double> result(1);
  window->update(std::as_writable_bytes(std::span(result)), bytes_of({1.0}),
                 {0.0, {{kPeer, 1.0}}});
  CHECK_EQ(result[0], 7.0);
}

TEST(window_losses, an_answer_to_a_get_does_not_disturb_the_reader_of_shared_memory) {
  WindowRank rank(WindowService::Survival{[](int) { return false; }});
  rank.peers.dead.takes = rank.peers.dead.shares = true;
  const auto window = rank.make_window(2);
  CHECK(rank.service.open(window, Clock::time_point::max())->done());
  rank.receive(WindowAction::kGet, 1);
  const std::span<const std::byte> bytes = window->published_memory();
  PublishedValue theirs({const_cast<std::byte*>(bytes.data()), bytes.size()},
                        sizeof(double), window->readers());
  const std::size_t number = *window->reader_number(kPeer);
  const PublishedValue::View view = theirs.begin_read(number);
  rank.poll();  // the answer has been taken
  for (const double value : {2.0, 3.0, 4.0}) window->publish(bytes_of({value}));
  CHECK_EQ(*reinterpret_cast<const double*>(view.bytes.data()), 1.0);
  theirs.end_read(number);
}

TEST(window_losses, edges_of_a_window_that_cannot_grow_stay_as_they_are) {
  WindowRank rank;
  const auto window = rank.make_window();
  CHECK(rank.service.open(window, Clock::time_point::max())->kind() ==
        RequestKind::kWinCreate);
  CHECK(!window->accept(2));
  CHECK(window->targets() == std::vector{kPeer});
}

}  // namespace
}  // namespace bluecomm::test
