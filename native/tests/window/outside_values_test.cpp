// Tests windows whose values lie elsewhere: the caller moves each value between two
// calls, which change words, p and counts.
#include <memory>
#include <vector>

#include "tests/check.h"
#include "tests/window/windows.h"
#include "window/window.h"

namespace bluecomm::test {
namespace {

using Publication = MailboxReader::Publication;

WindowConfig outside_config(int rank, int neighbor) {
  WindowConfig config;
  config.id = 7;
  config.name = "x";
  config.rank = rank;
  config.dtype = DType::kFloat32;
  config.in_neighbors = {neighbor};
  config.out_neighbors = {neighbor};
  config.nbytes_elsewhere = 12;
  return config;
}

// The windows of ranks 0 and 1. Rank 0 reaches the memory of rank 1.
struct OutsideWindows {
  OutsideWindows() {
    const auto bytes = [](std::span<const std::byte> memory) {
      return SharedBytes{nullptr,
                         {const_cast<std::byte*>(memory.data()), memory.size()}};
    };
    mine->attach_mailbox(1, bytes(theirs->mailbox_memory(0)));
    mine->attach_value(1, bytes(theirs->published_memory()), 0, 1);
  }

  void put(double p, bool accumulates = false) {
    CHECK(mine->put_directly(1, {{}, 1.0, accumulates, {p, true}}));
  }

  const std::shared_ptr<Window> theirs =
      std::make_shared<Window>(outside_config(1, 0), bytes_of({}), allocate_aligned);
  const std::shared_ptr<Window> mine =
      std::make_shared<Window>(outside_config(0, 1), bytes_of({}), allocate_aligned);
};

TEST(outside_values, a_put_publishes_the_back_slot) {
  OutsideWindows windows;
  CHECK(windows.theirs->next(0) == Publication::kNone);
  const auto filled = windows.mine->back_slot(1);
  windows.put(3.0);
  CHECK(windows.mine->back_slot(1) != filled);
  CHECK(windows.theirs->next(0) == Publication::kSet);
  const auto [publication, slot] = windows.theirs->take(0);
  CHECK(publication == Publication::kSet);
  CHECK_EQ(slot, filled.value());
  // The update takes nothing that has come since.
  windows.put(5.0);
  windows.theirs->update({}, {},
                         {0.0,
                          {{0, 1.0}},
                          false,
                          true,
                          /*keeps=*/true,
                          /*takes=*/false});
  CHECK_EQ(windows.theirs->p(), 3.0);
  CHECK_EQ(windows.theirs->versions().at(0), 1U);
}

TEST(outside_values, a_sum_needs_a_pending_value) {
  OutsideWindows windows;
  CHECK(!windows.mine->pending(1));
  windows.put(1.0, true);
  const auto pending = windows.mine->pending(1);
  const auto filled = windows.mine->back_slot(1);
  CHECK(windows.mine->publish_sum(1, *pending, {2.0, true}));
  CHECK(!windows.mine->publish_sum(1, *pending, {2.0, true}));
  CHECK_EQ(windows.theirs->take(0).second, filled.value());
}

TEST(outside_values, a_reserved_slot_becomes_current) {
  OutsideWindows windows;
  const auto before = windows.mine->begin_get(1);
  const std::uint32_t next = windows.theirs->reserve();
  CHECK(next != before.value());
  windows.theirs->scale_p(4.0);
  windows.theirs->publish({});
  // The slot that was begun stays that of the get.
  CHECK(windows.mine->get_directly(1, 1.0, true));
  CHECK_EQ(windows.mine->begin_get(1).value(), next);
  CHECK(windows.theirs->reserve() != next);
}

TEST(outside_values, a_neighbor_that_is_gone_has_no_slots) {
  OutsideWindows windows;
  CHECK(windows.mine->begin_get(1).has_value());
  windows.mine->detach(1);
  CHECK(!windows.mine->back_slot(1));
  CHECK(!windows.mine->pending(1));
  CHECK(!windows.mine->begin_get(1));
  CHECK(!windows.mine->get_directly(1, 1.0, false));
  CHECK(!windows.mine->publish_sum(1, {}, {}));
  CHECK(!windows.theirs->back_slot(5));
}

}  // namespace
}  // namespace bluecomm::test
