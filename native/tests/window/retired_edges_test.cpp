// Tests how updates use the values that a lost rank has left.
#include <limits>
#include <memory>
#include <vector>

#include "tests/check.h"
#include "tests/window/windows.h"
#include "window/window.h"

namespace bluecomm::test {
namespace {

constexpr int kLost = 1;
constexpr int kAlive = 2;

// A window of rank 0, and the mailboxes of its neighbors as these see them.
template <typename Element>
class TwoNeighbors {
 public:
  explicit TwoNeighbors(DType dtype, bool zero_init = false) : dtype_(dtype) {
    WindowConfig config;
    config.name = "x";
    config.dtype = dtype;
    config.nbytes = sizeof(Element);
    config.in_neighbors = {kLost, kAlive};
    config.zero_init = zero_init;
    const std::vector<Element> value{1};
    window = std::make_unique<Window>(config, std::as_bytes(std::span(value)),
                                      allocate_aligned);
  }

  MailboxWriter writer(int rank) {
    const auto memory = window->mailbox_memory(rank);
    return MailboxWriter(Mailbox({const_cast<std::byte*>(memory.data()), memory.size()},
                                 sizeof(Element), dtype_));
  }

  Element update(Element own, const Window::Update& update) {
    std::vector<Element> result(1);
    const std::vector<Element> value{own};
    replaced = window->update(std::as_writable_bytes(std::span(result)),
                              std::as_bytes(std::span(value)), update);
    return result[0];
  }

  std::unique_ptr<Window> window;
  std::size_t replaced = 0;

 private:
  const DType dtype_;
};

Window::Update average(bool with_p = false) {
  return {0.5, {{kLost, 0.25}, {kAlive, 0.25}}, false, with_p, true};
}

TEST(retired_edges, the_own_value_takes_the_weight_after_the_last_value) {
  TwoNeighbors<double> reader(DType::kFloat64);
  MailboxWriter lost = reader.writer(kLost);
  MailboxWriter alive = reader.writer(kAlive);
  lost.put(bytes_of({40.0}), 1.0, {4.0, true});
  alive.put(bytes_of({8.0}), 1.0, {2.0, true});
  reader.window->retire(kLost);
  // A look that changes nothing does not use the value up.
  Window::Update look = average();
  look.keeps = false;
  CHECK_EQ(reader.update(4.0, look), 14.0);
  CHECK_EQ(reader.replaced, 0U);
  CHECK_EQ(reader.update(4.0, average(true)), 14.0);
  CHECK_EQ(reader.window->p(), 2.0);
  CHECK_EQ(reader.update(4.0, average(true)), 5.0);
  CHECK_EQ(reader.replaced, 1U);
  CHECK_EQ(reader.window->p(), 0.75 * 2.0 + 0.25 * 2.0);
}

TEST(retired_edges, a_value_that_an_update_has_used_is_not_used_again) {
  TwoNeighbors<double> reader(DType::kFloat64);
  reader.writer(kLost).put(bytes_of({40.0}), 1.0, {});
  CHECK_EQ(reader.update(4.0, average()), 12.25);
  reader.window->retire(kLost);
  CHECK_EQ(reader.update(4.0, average()), 3.25);
  CHECK_EQ(reader.replaced, 1U);
}

TEST(retired_edges, a_rank_that_has_left_nothing_counts_as_the_own_value) {
  TwoNeighbors<double> reader(DType::kFloat64);
  reader.window->retire(kLost);
  CHECK_EQ(reader.update(5.0, average()), 0.75 * 5.0 + 0.25);
}

TEST(retired_edges, values_are_collected_once) {
  TwoNeighbors<double> reader(DType::kFloat64, true);
  MailboxWriter lost = reader.writer(kLost);
  lost.accumulate(bytes_of({40.0}), 1.0, {0.5, true});
  lost.accumulate(bytes_of({2.0}), 1.0, {0.25, true});
  reader.window->retire(kLost);
  const Window::Update collect{1.0, {{kLost, 1.0}, {kAlive, 1.0}}, true, true, true};
  CHECK_EQ(reader.update(4.0, collect), 46.0);
  CHECK_EQ(reader.window->p(), 1.75);
  CHECK_EQ(reader.update(4.0, collect), 4.0);
  CHECK_EQ(reader.window->p(), 1.75);
}

// It has been stopped, and continues although the others go on without it.
TEST(retired_edges, a_writer_that_lives_on_is_not_seen) {
  TwoNeighbors<double> reader(DType::kFloat64);
  MailboxWriter lost = reader.writer(kLost);
  lost.put(bytes_of({40.0}), 1.0, {});
  reader.window->retire(kLost);
  reader.window->retire(kLost);  // has no effect
  for (int i = 0; i < 5; ++i) {
    lost.put(bytes_of({std::numeric_limits<double>::quiet_NaN()}), 1.0, {});
  }
  CHECK_EQ(reader.window->versions().at(kLost), 1U);
  CHECK_EQ(reader.update(4.0, average()), 12.25);
  CHECK_EQ(reader.update(4.0, average()), 3.25);
}

TEST(retired_edges, integers_keep_the_last_value) {
  TwoNeighbors<std::int64_t> reader(DType::kInt64);
  const std::vector<std::int64_t> seven{7};
  reader.writer(kLost).put(std::as_bytes(std::span(seven)), 1.0, {});
  reader.window->retire(kLost);
  for (int i = 0; i < 2; ++i) {
    CHECK_EQ(reader.update(1, {0.0, {{kLost, 1.0}}}), 7);
  }
}

}  // namespace
}  // namespace bluecomm::test
