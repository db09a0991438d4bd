// Tests windows with device values: the caller moves each value between two
// calls, which change words, p and counts.
#include <memory>
#include <vector>

#include "tests/check.h"
#include "tests/window/windows.h"
#include "window/window.h"

namespace bluecomm::test {
namespace {

using Publication = MailboxReader::Publication;

WindowConfig device_config(int rank, int neighbor) {
  WindowConfig config;
  config.id = 7;
  config.name = "x";
  config.rank = rank;
  config.dtype = DType::kFloat32;
  config.in_neighbors = {neighbor};
  config.out_neighbors = {neighbor};
  config.nbytes_on_device = 12;
  return config;
}

// The windows of ranks 0 and 1. Rank 0 reaches the memory of rank 1.
struct DeviceWindows {
  DeviceWindows() {
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
      std::make_shared<Window>(device_config(1, 0), bytes_of({}), allocate_aligned);
  const std::shared_ptr<Window> mine =
      std::make_shared<Window>(device_config(0, 1), bytes_of({}), allocate_aligned);
};

TEST(device_values, a_put_publishes_the_back_slot) {
  DeviceWindows windows;
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

TEST(device_values, a_sum_needs_a_pending_value) {
  DeviceWindows windows;
  CHECK(!windows.mine->pending(1));
  windows.put(1.0, true);
  const auto pending = windows.mine->pending(1);
  const auto filled = windows.mine->back_slot(1);
  CHECK(windows.mine->publish_sum(1, *pending, {2.0, true}));
  CHECK(!windows.mine->publish_sum(1, *pending, {2.0, true}));
  CHECK_EQ(windows.theirs->take(0).second, filled.value());
}

TEST(device_values, a_reserved_slot_becomes_current) {
  DeviceWindows windows;
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

TEST(device_values, a_neighbor_that_is_gone_has_no_slots) {
  DeviceWindows windows;
  CHECK(windows.mine->begin_get(1).has_value());
  windows.mine->detach(1);
  CHECK(!windows.mine->back_slot(1));
  CHECK(!windows.mine->pending(1));
  CHECK(!windows.mine->begin_get(1));
  CHECK(!windows.mine->get_directly(1, 1.0, false));
  CHECK(!windows.mine->publish_sum(1, {}, {}));
  CHECK(!windows.theirs->back_slot(5));
}

TEST(device_values, answers_say_which_slot_a_neighbor_without_shared_memory_takes) {
  DeviceWindows windows;
  Window& mine = *windows.theirs;  // reaches no memory of rank 0
  Window& other = *windows.mine;
  CHECK(!mine.shares_mailbox(0));
  CHECK(!mine.pending(0));
  const auto filled = mine.back_slot(0);
  other.writer_for(1).publish_put({1.0, true, 5});
  CHECK_EQ(other.next_signal(1), 5U);
  mine.note_back(0, static_cast<int>(other.writer_for(1).back_slot()), true);
  CHECK_EQ(mine.pending(0)->slot, filled.value());
  CHECK_EQ(mine.back_slot(0).value(), other.writer_for(1).back_slot());

  // A sum replaces what is pending; a value alone needs that nothing is.
  CHECK(!other.publish_for(1, {2.0, true, 6}, false));
  CHECK(other.publish_for(1, {2.0, true, 6}, true));
  mine.note_back(0, static_cast<int>(other.writer_for(1).back_slot()), true);
  CHECK_EQ(other.next_signal(1), 6U);
  CHECK_EQ(other.take(1).second, mine.pending(0)->slot);
  CHECK(!other.publish_for(1, {4.0, true, 7}, true));
  mine.note_back(0, static_cast<int>(other.writer_for(1).back_slot()), false);
  CHECK(!mine.was_published(0));
  CHECK(!mine.pending(0));
  CHECK(other.publish_for(1, {4.0, true, 7}, false));
  CHECK(other.take(1).first == Publication::kAdd);

  mine.forget_back(0);
  CHECK(!mine.back_slot(0));
}

TEST(device_values, a_publication_names_the_signal_behind_its_value) {
  DeviceWindows windows;
  windows.mine->set_signal(1, 3);
  windows.put(1.0);
  CHECK_EQ(windows.theirs->next_signal(0), 3U);
  const auto pending = windows.mine->pending(1);
  windows.mine->set_signal(1, 4);
  CHECK(windows.mine->publish_sum(1, *pending, {1.0, true}));
  CHECK_EQ(windows.theirs->next_signal(0), 4U);
  windows.theirs->take(0);
  CHECK_EQ(windows.theirs->next_signal(0), 4U);
}

}  // namespace
}  // namespace bluecomm::test
