// Tests of the executor with plans written by hand.
#include "engine/operation.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "tests/check.h"
#include "transport/inproc/transport.h"

namespace bluecomm::test {
namespace {

using namespace std::chrono_literals;

// One rank, which runs one operation.
class Runner final : public Receiver {
 public:
  Runner(InprocHub& hub, int rank)
      : rank_(rank), transport_(hub.make_transport(rank)) {}

  void connect(int size) {
    for (int peer = 0; peer < size; ++peer) {
      channels_.push_back(
          peer == rank_ ? nullptr : &transport_->channel(peer, transport_->offer()));
    }
    auto group = std::make_shared<Group>();
    group->id = 1;
    group->me = rank_;
    for (int peer = 0; peer < size; ++peer) group->ranks.push_back(peer);
    group_ = std::move(group);
  }

  void set_plan(Plan plan) {
    Call call;
    call.kind = Kind::kAllreduce;
    call.name = "x";
    call.dtype = DType::kFloat32;
    call.group = group_;
    const Envelope envelope = make_envelope(call, Algorithm::kFlat, 0, 0, 0);
    operation_.emplace(1, std::move(call), std::move(plan), envelope, nullptr);
  }

  Operation& operation() { return *operation_; }
  void start() { operation_->start(channels_); }
  bool poll(std::size_t budget = 1 << 20) {
    const bool received = transport_->poll(*this);
    return operation_->advance(budget) || received;
  }
  bool done() const { return operation_->state() == Operation::State::kDone; }
  int unexpected() const { return unexpected_; }
  Transport& transport() { return *transport_; }

 private:
  void on_message(int peer, std::unique_ptr<Incoming> message) override {
    const Envelope envelope = *read_envelope(message->header());
    if (operation_->deliver(peer, envelope, message) ==
        Operation::Delivery::kUnexpected) {
      ++unexpected_;
    }
  }
  void on_lost(int, Status) override {}
  void on_goodbye(int) override {}

  const int rank_;
  std::unique_ptr<Transport> transport_;
  std::vector<Channel*> channels_;
  std::shared_ptr<const Group> group_;
  std::optional<Operation> operation_;
  int unexpected_ = 0;
};

class World {
 public:
  explicit World(int size, const InprocOptions& options = {}) : hub_(size, options) {
    for (int rank = 0; rank < size; ++rank) {
      runners_.push_back(std::make_unique<Runner>(hub_, rank));
    }
    for (auto& runner : runners_) runner->connect(size);
  }

  Runner& operator[](int rank) { return *runners_[static_cast<std::size_t>(rank)]; }

  void run(std::size_t budget = 1 << 20) {
    for (auto& runner : runners_) {
      if (runner->operation().state() == Operation::State::kQueued) runner->start();
    }
    const auto limit = Clock::now() + 10s;
    bool all_done = false;
    while (!all_done && Clock::now() < limit) {
      all_done = true;
      for (auto& runner : runners_) {
        runner->poll(budget);
        if (!runner->done() && !runner->operation().error()) all_done = false;
      }
    }
    CHECK(all_done);
  }

 private:
  InprocHub hub_;
  std::vector<std::unique_ptr<Runner>> runners_;
};

std::span<const std::byte> bytes_of(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}
std::span<std::byte> bytes_of(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values));
}

std::vector<float> ramp(std::size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

Gather sum_with(std::vector<float>& tensor, int peer) {
  Gather gather;
  gather.dst = bytes_of(tensor);
  gather.combine = Combine::kWeighted;
  gather.sources = {{kSelf, 0, bytes_of(std::as_const(tensor)), 0.5},
                    {peer, 0, {}, 2.0}};
  gather.overwrites_sent = true;
  return gather;
}

Gather copy_of(std::vector<float>& tensor, int peer) {
  Gather gather;
  gather.dst = bytes_of(tensor);
  gather.sources = {{peer, 0, {}, 1.0}};
  return gather;
}

TEST(operation, exchanges_in_place_more_than_its_ring_holds) {
  // A chunk of the ring has 256 KiB, the whole ring 1 MiB.
  for (const std::size_t count :
       {0UL, 1UL, 17UL, 65536UL, 65537UL, 300001UL, 700000UL}) {
    for (const std::size_t budget : {1UL, 4096UL, 1UL << 20}) {
      if (budget == 1 && count > 70000) continue;
      World world(2);
      std::vector<float> tensors[] = {ramp(count, 1.0F), ramp(count, 1000.0F)};
      for (int rank = 0; rank < 2; ++rank) {
        Plan plan;
        plan.phases.resize(1);
        plan.phases[0].sends = {{1 - rank, 0, bytes_of(tensors[rank]), 3.0}};
        plan.phases[0].gathers = {sum_with(tensors[rank], 1 - rank)};
        world[rank].set_plan(std::move(plan));
      }
      world.run(budget);
      for (std::size_t i = 0; i < count; ++i) {
        const float a = 1.0F + static_cast<float>(i);
        const float b = 1000.0F + static_cast<float>(i);
        if (tensors[0][i] == 0.5F * a + 6.0F * b &&
            tensors[1][i] == 0.5F * b + 6.0F * a) {
          continue;
        }
        CHECK_EQ(tensors[0][i], 0.5F * a + 6.0F * b);
        CHECK_EQ(tensors[1][i], 0.5F * b + 6.0F * a);
        break;
      }
    }
  }
}

TEST(operation, copies_past_the_caches_at_any_alignment) {
  constexpr std::size_t kCount = 100'000;
  World world(2);
  const std::vector<float> tensor = ramp(kCount, 1.0F);
  std::vector<float> received(kCount + 1);
  Plan sender;
  sender.phases.resize(1);
  sender.phases[0].sends = {{1, 0, bytes_of(tensor)}};
  world[0].set_plan(std::move(sender));
  Plan receiver;
  receiver.phases.resize(1);
  Gather gather;
  gather.dst = bytes_of(received).subspan(sizeof(float));
  gather.sources = {{0, 0, {}, 1.0}};
  gather.past_caches = true;
  receiver.phases[0].gathers = {gather};
  world[1].set_plan(std::move(receiver));
  world.run(10'000);
  CHECK_EQ(received[0], 0.0F);
  CHECK(std::equal(tensor.begin(), tensor.end(), received.begin() + 1));
}

TEST(operation, a_send_that_starts_inside_the_destination_is_respected) {
  // Rank 0 sends the second half of the memory that its gather overwrites.
  World world(2);
  const std::size_t half = 200000;
  std::vector<float> tensor = ramp(2 * half, 0.0F);
  const std::vector<float> old = tensor;
  std::vector<float> received(half);
  const std::vector<float> fresh = ramp(2 * half, -1e6F);
  Plan first;
  first.phases.resize(1);
  first.phases[0].sends = {{1, 0, bytes_of(std::as_const(tensor)).subspan(4 * half)}};
  Gather overwrite;
  overwrite.dst = bytes_of(tensor);
  overwrite.sources = {{1, 0, {}, 1.0}};
  overwrite.overwrites_sent = true;
  first.phases[0].gathers = {overwrite};
  world[0].set_plan(std::move(first));
  Plan second;
  second.phases.resize(1);
  second.phases[0].sends = {{0, 0, bytes_of(fresh)}};
  Gather take;
  take.dst = bytes_of(received);
  take.sources = {{0, 0, {}, 1.0}};
  second.phases[0].gathers = {take};
  world[1].set_plan(std::move(second));
  world.run();
  CHECK(tensor == fresh);
  CHECK(std::equal(received.begin(), received.end(), old.begin() + half));
}

// Returns how much of a growing message of rank 0 arrives at rank 1, which sends a
// message to rank 0 only if `answers`.
std::size_t arrived_of_growing(bool awaits_answer, bool answers) {
  constexpr std::size_t kLead = 128 << 10;
  InprocOptions options;
  options.lead = kLead;
  World world(2, options);
  const std::vector<float> large = ramp(256 << 10, 1.0F);
  std::vector<float> received(large.size());
  std::vector<float> answer(large.size());
  Plan sender;
  sender.phases.resize(2);
  sender.phases[0].sends = {{1, 0, bytes_of(large)}};
  if (awaits_answer) sender.phases[0].gathers = {copy_of(answer, 1)};
  sender.phases[1].overlaps = true;
  world[0].set_plan(std::move(sender));
  Plan receiver;
  receiver.phases.resize(2);
  if (answers) receiver.phases[0].sends = {{0, 0, bytes_of(large)}};
  receiver.phases[0].gathers = {copy_of(received, 0)};
  receiver.phases[1].overlaps = true;
  world[1].set_plan(std::move(receiver));
  for (int rank = 0; rank < 2; ++rank) world[rank].start();
  for (int turn = 0; turn < 1000; ++turn) {
    for (int rank = 0; rank < 2; ++rank) world[rank].poll();
  }
  if (world[1].done()) return bytes_of(received).size();
  return world[1].operation().unfinished().received;
}

TEST(operation, sends_no_further_ahead_than_the_lead_of_its_channel) {
  constexpr std::size_t kWhole = 1 << 20;
  CHECK_EQ(arrived_of_growing(true, false), 128U << 10);
  CHECK_EQ(arrived_of_growing(true, true), kWhole);
  // The peer sends no data that could delay its acknowledgements.
  CHECK_EQ(arrived_of_growing(false, false), kWhole);
}

// Returns whether an operation is urgent once rank 0 has started to exchange tensors of
// so many values in so many phases.
bool is_urgent_after_start(std::size_t count, std::size_t phases,
                           bool shares_memory = false) {
  InprocOptions options;
  options.shares_memory = shares_memory;
  World world(2, options);
  std::vector<std::vector<float>> tensors(2 * phases, std::vector<float>(count));
  Plan plan;
  plan.phases.resize(phases);
  for (std::size_t p = 0; p < phases; ++p) {
    plan.phases[p].sends = {{1, 0, bytes_of(std::as_const(tensors[2 * p]))}};
    Gather gather;
    gather.dst = bytes_of(tensors[2 * p + 1]);
    gather.sources = {{1, 0, {}, 1.0}};
    plan.phases[p].gathers = {gather};
  }
  world[0].set_plan(std::move(plan));
  CHECK(world[0].operation().is_urgent());  // it is queued
  world[0].start();
  world[0].poll();
  CHECK(!world[0].done());
  return world[0].operation().is_urgent();
}

TEST(operation, is_urgent_until_its_copied_messages_are_sent) {
  CHECK(!is_urgent_after_start(1024, 1));
  CHECK(is_urgent_after_start(1025, 1));  // the peer waits until its memory is read
  CHECK(is_urgent_after_start(1024, 2));
  CHECK(!is_urgent_after_start(1025, 2, true));
}

TEST(operation, holds_messages_of_later_phases) {
  // Rank 1 is two phases ahead of what rank 0 has begun.
  World world(2);
  std::vector<float> parts[] = {std::vector<float>(4), std::vector<float>(4),
                                std::vector<float>(4)};
  const std::vector<float> sent[] = {ramp(4, 1), ramp(4, 10), ramp(4, 100)};
  Plan receiver;
  Plan sender;
  for (int p = 0; p < 3; ++p) {
    Phase take;
    Gather gather;
    gather.dst = bytes_of(parts[p]);
    gather.sources = {{1, 7, {}, 1.0}};
    take.gathers = {gather};
    receiver.phases.push_back(std::move(take));
    Phase give;
    give.sends = {{0, 7, bytes_of(sent[p])}};
    sender.phases.push_back(std::move(give));
  }
  world[0].set_plan(std::move(receiver));
  world[1].set_plan(std::move(sender));
  world[1].start();
  for (int i = 0; i < 20; ++i) world[1].poll();
  CHECK(world[1].done());
  for (int i = 0; i < 20; ++i) world[0].transport().poll(world[0]);
  CHECK_EQ(world[0].unexpected(), 0);
  world.run();
  for (int p = 0; p < 3; ++p) CHECK(parts[p] == sent[p]);
}

TEST(operation, binds_when_all_headers_have_arrived) {
  World world(3);
  std::vector<float> result;
  std::vector<std::int64_t> announced;
  const std::vector<float> inputs[] = {ramp(3, 0), ramp(2, 10), ramp(0, 0)};
  Plan plan;
  plan.phases.resize(1);
  for (int rank = 0; rank < 3; ++rank) {
    Gather gather;
    Source source;
    if (rank == 0) {
      source.own = bytes_of(inputs[0]);
    } else {
      source.peer = rank;
    }
    gather.sources = {source};
    plan.phases[0].gathers.push_back(gather);
  }
  plan.phases[0].bind = [&](std::span<const Arrival> arrivals,
                            std::vector<Gather>& gathers) {
    for (const Arrival& one : arrivals) announced.push_back(one.first_dim);
    result.resize(5);
    std::span<std::byte> rest = bytes_of(result);
    const std::size_t lengths[] = {12, arrivals[0].nbytes, arrivals[1].nbytes};
    for (int g = 0; g < 3; ++g) {
      gathers[static_cast<std::size_t>(g)].dst = rest.first(lengths[g]);
      rest = rest.subspan(lengths[g]);
    }
  };
  world[0].set_plan(std::move(plan));
  for (int rank = 1; rank < 3; ++rank) {
    Plan give;
    give.phases.resize(1);
    Send send{0, 0, bytes_of(inputs[rank])};
    send.first_dim = rank * 11;
    give.phases[0].sends = {send};
    world[rank].set_plan(std::move(give));
  }
  world.run();
  CHECK(result == std::vector<float>({0, 1, 2, 10, 11}));
  CHECK(announced == std::vector<std::int64_t>({11, 22}));
}

Plan take_from(int peer, std::vector<float>& into) {
  Plan plan;
  plan.phases.resize(1);
  Gather gather;
  gather.dst = bytes_of(into);
  gather.sources = {{peer, 0, {}, 1.0}};
  plan.phases[0].gathers = {gather};
  return plan;
}

Plan give_to(int peer, const std::vector<float>& from) {
  Plan plan;
  plan.phases.resize(1);
  plan.phases[0].sends = {{peer, 0, bytes_of(from)}};
  return plan;
}

TEST(operation, rejects_another_length) {
  World world(2);
  std::vector<float> into(4);
  const std::vector<float> from(3);
  world[0].set_plan(take_from(1, into));
  world[1].set_plan(give_to(0, from));
  world.run();
  REQUIRE(world[0].operation().error().has_value());
  CHECK_EQ(world[0].operation().error()->text,
           "allreduce 'x' on rank 0: rank 1 announced 12 bytes where 16 were expected "
           "(phase 0). All ranks must pass the same arguments.");
  CHECK_EQ(world[0].operation().error()->rank, 1);
}

TEST(operation, reports_why_bind_failed) {
  World world(1);
  Plan plan;
  plan.phases.resize(1);
  plan.phases[0].bind = [](auto, auto&) { throw std::bad_alloc(); };
  world[0].set_plan(std::move(plan));
  world.run();
  CHECK_EQ(
      world[0].operation().error()->text,
      "allreduce 'x' on rank 0: cannot allocate memory for the result: std::bad_alloc");
}

TEST(operation, reports_what_is_unfinished) {
  World world(3);
  std::vector<float> into(4);
  std::vector<float> big(1 << 20);
  Plan plan = take_from(1, into);
  plan.phases[0].sends = {{2, 0, bytes_of(std::as_const(big))}};
  world[0].set_plan(std::move(plan));
  world[0].start();
  world[0].poll();
  Operation& operation = world[0].operation();
  const Operation::Unfinished unfinished = operation.unfinished();
  REQUIRE(unfinished.missing.size() == 1);
  CHECK_EQ(unfinished.missing[0].peer, 1);
  CHECK(!unfinished.missing[0].announced);
  CHECK(unfinished.not_taken == std::vector<int>({2}));
  CHECK_EQ(unfinished.received, 0U);
  CHECK_EQ(unfinished.expected, 16U);
  CHECK(operation.needs(1) && operation.needs(2));
  CHECK_EQ(operation.blocker(), 1);
  CHECK(operation.peers() == std::vector<int>({1, 2}));

  world[1].set_plan(give_to(0, into));
  world[1].start();
  std::vector<float> taken(big.size());
  world[2].set_plan(take_from(0, taken));
  world[0].poll();
  CHECK(!operation.needs(1));
  CHECK_EQ(operation.blocker(), 2);
  world.run();
  CHECK(!operation.needs(2));
}

TEST(operation, takes_each_message_once) {
  World world(2);
  std::vector<float> into(4);
  const std::vector<float> from(4);
  world[0].set_plan(take_from(1, into));
  Plan twice = give_to(0, from);
  twice.phases[0].sends.push_back(twice.phases[0].sends[0]);
  world[1].set_plan(std::move(twice));
  // Delivered before the operation starts.
  world[1].start();
  world[0].transport().poll(world[0]);
  CHECK_EQ(world[0].unexpected(), 1);
  world.run();
  CHECK(world[0].done());
}

}  // namespace
}  // namespace bluecomm::test
