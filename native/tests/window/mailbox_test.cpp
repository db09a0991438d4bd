#include "window/mailbox.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tests/values.h"

namespace bluecomm::test {
namespace {

// A mailbox in its own memory, with its writer and its reader.
class Pair {
 public:
  explicit Pair(std::size_t nbytes, DType dtype = DType::kFloat64,
                std::shared_ptr<const std::vector<std::byte>> initial = nullptr)
      : memory_(Mailbox::nbytes_for(nbytes) + 64),
        mailbox_(prepare(), nbytes, dtype),
        writer(mailbox_),
        reader(mailbox_, std::move(initial)) {}

 private:
  std::span<std::byte> prepare() {
    void* start = memory_.data();
    std::size_t room = memory_.size();
    std::align(64, memory_.size() - 64, start, room);
    const std::span<std::byte> bytes(static_cast<std::byte*>(start), room);
    Mailbox::initialize(bytes);
    return bytes;
  }

  std::vector<std::byte> memory_;
  Mailbox mailbox_;

 public:
  MailboxWriter writer;
  MailboxReader reader;
};

std::span<const std::byte> bytes_of(const std::vector<double>& values) {
  return std::as_bytes(std::span(values));
}

std::vector<double> value_of(const MailboxReader& reader) {
  return values_of(reader.value(), DType::kFloat64);
}

const std::vector<double> kOne{1.0, 2.0, 3.0};

TEST(mailbox, the_last_put_counts) {
  Pair pair(24);
  CHECK(!pair.reader.take());
  CHECK(pair.reader.value().empty());
  pair.writer.put(bytes_of(kOne), 1.0, {});
  pair.writer.put(bytes_of(kOne), 2.0, {});
  CHECK(pair.reader.take());
  CHECK(!pair.reader.take());
  CHECK(value_of(pair.reader) == std::vector<double>({2, 4, 6}));
  pair.writer.put(bytes_of(kOne), 3.0, {});
  CHECK(value_of(pair.reader) == std::vector<double>({2, 4, 6}));
  CHECK(pair.reader.take());
  CHECK(value_of(pair.reader) == std::vector<double>({3, 6, 9}));
}

TEST(mailbox, values_too_large_for_caches_arrive_whole) {
  std::vector<double> x((std::size_t{32} << 20) / sizeof(double) + 3);
  std::iota(x.begin(), x.end(), 0.5);
  Pair pair(x.size() * sizeof(double));
  pair.writer.put(bytes_of(x), 1.0, {});
  CHECK(pair.reader.take());
  CHECK(std::ranges::equal(pair.reader.value(), bytes_of(x)));
}

// Compares all orders of a few steps with a simple model.
TEST(mailbox, every_order_of_steps_agrees_with_a_model) {
  constexpr int kSteps = 6;
  enum Step { kPut, kAdd, kTake, kReset, kReplace, kStepCount };
  int orders = 1;
  for (int i = 0; i < kSteps; ++i) orders *= kStepCount;
  for (int order = 0; order < orders; ++order) {
    Pair pair(8);
    double sent = 0;  // by the writer since the last take
    bool sets = false;
    bool sent_any = false;
    double value = 0;  // of the reader
    double p = 0;
    double sent_p = 0;
    double next = 1;
    std::vector<std::byte> replacement;
    const auto take = [&] {
      if (sent_any) {
        value = sets ? sent : value + sent;
        p = sets ? sent_p : p + sent_p;
      }
      sent = sent_p = 0;
      sets = sent_any = false;
    };
    for (int rest = order, i = 0; i < kSteps; ++i, rest /= kStepCount, next *= 2) {
      const std::vector<double> x{next};
      switch (rest % kStepCount) {
        case kPut:
          pair.writer.put(bytes_of(x), 1.0, {next, true});
          sent = sent_p = next;
          sets = sent_any = true;
          break;
        case kAdd:
          pair.writer.accumulate(bytes_of(x), 1.0, {next, true});
          sent += next;
          sent_p += next;
          sent_any = true;
          break;
        case kTake:
          CHECK_EQ(pair.reader.take(), sent_any);
          take();
          break;
        case kReset:
          pair.reader.reset(true);
          value = p = 0;
          break;
        default:
          replacement.assign(bytes_of(x).begin(), bytes_of(x).end());
          pair.reader.replace(replacement, {next, true});
          take();
          value = p = next;
      }
      const auto got = value_of(pair.reader);
      REQUIRE((got.empty() ? 0.0 : got[0]) == value);
      REQUIRE(pair.reader.p() == p);
    }
  }
}

TEST(mailbox, starts_with_the_initial_value) {
  const auto bytes = bytes_of(kOne);
  const auto initial =
      std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  Pair pair(24, DType::kFloat64, initial);
  CHECK(value_of(pair.reader) == kOne);
  pair.writer.accumulate(bytes, 1.0, {});
  pair.reader.take();
  CHECK(value_of(pair.reader) == std::vector<double>({2, 4, 6}));
  CHECK(values_of(*initial, DType::kFloat64) == kOne);
}

TEST(mailbox, a_p_after_a_put_without_p_is_added) {
  Pair pair(24);
  pair.writer.put(bytes_of(kOne), 1.0, {3.0, true});
  pair.reader.take();
  pair.writer.put(bytes_of(kOne), 1.0, {});
  pair.writer.accumulate(bytes_of(kOne), 1.0, {2.0, true});
  pair.writer.accumulate(bytes_of(kOne), 1.0, {1.0, true});
  pair.reader.take();
  CHECK_EQ(pair.reader.p(), 6.0);
}

TEST(mailbox, counts_puts_until_they_are_cleared) {
  Pair pair(24);
  CHECK_EQ(pair.reader.version(), 0U);
  pair.writer.put(bytes_of(kOne), 1.0, {});
  pair.writer.put(bytes_of(kOne), 1.0, {});
  pair.writer.accumulate(bytes_of(kOne), 1.0, {});
  CHECK_EQ(pair.reader.version(), 2U);
  pair.reader.take();
  pair.writer.put(bytes_of(kOne), 1.0, {});
  pair.reader.clear_version();  // two puts have been taken
  CHECK_EQ(pair.reader.version(), 1U);
  std::vector<std::byte> zeros(24);
  pair.reader.replace(zeros, {});
  CHECK_EQ(pair.reader.version(), 2U);
}

TEST(mailbox, weighs_every_floating_type) {
  for (const DType dtype : kEveryDType) {
    if (!is_floating(dtype)) continue;
    std::vector<std::byte> x(5 * item_size(dtype));
    for (std::size_t i = 0; i < 5; ++i) set_value(x, dtype, i, static_cast<double>(i));
    Pair pair(x.size(), dtype);
    pair.writer.put(x, 0.5, {});
    pair.writer.accumulate(x, 2.0, {});
    pair.reader.take();
    CHECK(values_of(pair.reader.value(), dtype) ==
          std::vector<double>({0, 2.5, 5, 7.5, 10}));
  }
}

TEST(mailbox, no_read_is_torn_while_the_writer_never_stops) {
  constexpr std::size_t kCount = 20000;
  Pair pair(kCount * sizeof(double));
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    std::vector<double> x(kCount);
    for (double next = 1; !stop.load(); ++next) {
      std::fill(x.begin(), x.end(), next);
      pair.writer.put(bytes_of(x), 1.0, {next, true});
    }
  });
  double last = 0;
  for (int taken = 0; taken < 200;) {
    if (!pair.reader.take()) {
      std::this_thread::yield();
      continue;
    }
    ++taken;
    const std::vector<double> x = value_of(pair.reader);
    CHECK(std::all_of(x.begin(), x.end(), [&](double one) { return one == x[0]; }));
    CHECK(x[0] > last);
    CHECK_EQ(pair.reader.p(), x[0]);
    last = x[0];
  }
  stop = true;
  writer.join();
}

TEST(mailbox, accumulating_against_taking_conserves_the_sum) {
  constexpr std::size_t kCount = 500;
  constexpr int kRounds = 3000;
  Pair pair(kCount * sizeof(double));
  std::thread writer([&] {
    std::vector<double> x(kCount);
    for (int i = 1; i <= kRounds; ++i) {
      std::fill(x.begin(), x.end(), i);
      pair.writer.accumulate(bytes_of(x), 1.0, {1.0, true});
    }
  });
  std::vector<double> sum(kCount, 0.0);
  double p = 0;
  while (p < kRounds) {
    if (!pair.reader.take()) std::this_thread::yield();
    p += pair.reader.p();
    const std::vector<double> x = value_of(pair.reader);
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] += x[i];
    pair.reader.reset(true);
  }
  writer.join();
  CHECK_EQ(p, kRounds);
  CHECK(sum == std::vector<double>(kCount, kRounds * (kRounds + 1) / 2.0));
}

// Slots of device values have no bytes in the mailbox.
TEST(mailbox, a_sum_in_two_steps_needs_the_pending_value) {
  Pair pair(0);
  CHECK(!pair.writer.pending());
  const std::uint32_t first = pair.writer.back_slot();
  pair.writer.publish_add({1.0, true});
  const auto pending = pair.writer.pending();
  CHECK(pending.has_value());
  CHECK_EQ(pending->slot, first);
  const std::uint32_t second = pair.writer.back_slot();
  CHECK(second != first);
  CHECK(pair.reader.next() == MailboxReader::Publication::kAdd);
  CHECK(pair.writer.publish_sum(*pending, {2.0, true}));
  // The slot of the earlier value is the writer's again.
  CHECK_EQ(pair.writer.back_slot(), first);
  CHECK(pair.reader.take_next() == MailboxReader::Publication::kAdd);
  CHECK_EQ(pair.reader.front_slot(), second);
  CHECK_EQ(pair.reader.p(), 3.0);
}

TEST(mailbox, a_sum_in_two_steps_fails_if_the_value_has_been_taken) {
  Pair pair(0);
  pair.writer.publish_put({});
  const auto pending = pair.writer.pending();
  const std::uint32_t front = pair.reader.front_slot();
  CHECK(pair.reader.take_next() == MailboxReader::Publication::kSet);
  CHECK_EQ(pair.reader.front_slot(), pending->slot);
  CHECK(pair.reader.next() == MailboxReader::Publication::kNone);
  const std::uint32_t back = pair.writer.back_slot();
  CHECK(!pair.writer.publish_sum(*pending, {}));
  CHECK_EQ(pair.writer.back_slot(), back);
  pair.writer.publish_add({});
  CHECK_EQ(pair.writer.back_slot(), front);
  CHECK(pair.reader.take_next() == MailboxReader::Publication::kAdd);
  CHECK_EQ(pair.reader.front_slot(), back);
}

}  // namespace
}  // namespace bluecomm::test
