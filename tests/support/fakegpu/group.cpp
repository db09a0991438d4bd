#include "group.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "report.h"
#include "world.h"

namespace fakegpu {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t error = kNcclSuccess;
  std::vector<Operation> operations;
};

Group& group() {
  thread_local Group own;
  return own;
}

using ByComm = std::vector<std::vector<Operation>>;

ByComm by_communicator(std::vector<Operation>& operations) {
  ByComm sets;
  std::map<ncclComm_t, std::size_t> index;
  for (Operation& operation : operations) {
    const auto [found, is_new] = index.try_emplace(operation.comm, sets.size());
    if (is_new) sets.emplace_back();
    sets[found->second].push_back(std::move(operation));
  }
  return sets;
}

bool overlap(const Operation& a, const Operation& b) {
  const void* const at[] = {a.send != nullptr ? a.send : a.receive,
                            b.send != nullptr ? b.send : b.receive};
  const auto* const x = static_cast<const char*>(at[0]);
  const auto* const y = static_cast<const char*>(at[1]);
  // Items have at most 8 bytes, and types may differ: compare what is surely touched.
  return a.count > 0 && b.count > 0 && x < y + b.count && y < x + a.count;
}

// Reports what NCCL leaves undefined, or waits on for ever.
ncclResult_t check_group(const std::vector<Operation>& operations) {
  const FakeComm& comm = *operations.front().comm;
  std::vector<const Operation*> to_self;
  std::vector<const Operation*> from_self;
  for (const Operation& one : operations) {
    if (one.stream != operations.front().stream) {
      violation("ncclGroupEnd", "one communicator on two streams in a group");
      return kNcclInvalidUsage;
    }
    if (one.kind != Operation::kPointToPoint) continue;
    if (one.root == comm.rank) {
      (one.send != nullptr ? to_self : from_self).push_back(&one);
    }
    for (const Operation& other : operations) {
      if (&other == &one || other.kind != Operation::kPointToPoint) continue;
      if (one.receive != nullptr && overlap(one, other)) {
        violation("ncclGroupEnd", "a receive overlaps another buffer of its group");
        return kNcclInvalidUsage;
      }
    }
  }
  bool fits = to_self.size() == from_self.size();
  for (std::size_t i = 0; fits && i < to_self.size(); ++i) {
    fits = to_self[i]->count == from_self[i]->count &&
           to_self[i]->type == from_self[i]->type;
  }
  if (fits) return kNcclSuccess;
  violation("ncclGroupEnd", "sends to itself and receives from itself do not match");
  return kNcclInvalidUsage;
}

bool is_collective(const Operation& one) {
  return one.kind != Operation::kPointToPoint && one.kind != Operation::kPut &&
         one.kind != Operation::kWaitSignal;
}

bool waits_for_signals(const ByComm& sets) {
  for (const std::vector<Operation>& set : sets) {
    for (const Operation& one : set) {
      if (one.kind == Operation::kWaitSignal) return true;
    }
  }
  return false;
}

ncclResult_t launch_all(ByComm sets) {
  ncclResult_t result = kNcclSuccess;
  for (std::vector<Operation>& operations : sets) {
    FakeComm& comm = *operations.front().comm;
    const ncclResult_t launched = launch(comm, std::move(operations));
    if (launched != kNcclSuccess) result = launched;
  }
  return result;
}

void expect_launches(const ByComm& sets, int change) {
  const std::scoped_lock lock(world().mutex);
  for (const std::vector<Operation>& operations : sets) {
    operations.front().stream->expected_launches += change;
  }
}

void launch_later(ByComm sets) {
  expect_launches(sets, 1);
  for (const auto& operations : sets) {
    const std::scoped_lock lock(operations.front().comm->mutex);
    operations.front().comm->state = CommState::kBusy;
    ++operations.front().comm->late_launches;
  }
  sigset_t signals;
  sigset_t before;
  sigfillset(&signals);
  pthread_sigmask(SIG_SETMASK, &signals, &before);
  const auto delay = std::chrono::microseconds(
      draw() % static_cast<std::uint64_t>(settings().delay_us + 1));
  std::thread([sets = std::move(sets), delay]() mutable {
    std::this_thread::sleep_for(delay);
    const ByComm launched = sets;
    const ncclResult_t result = launch_all(std::move(sets));
    expect_launches(launched, -1);
    for (const auto& operations : launched) {
      FakeComm& comm = *operations.front().comm;
      if (result != kNcclSuccess) set_error(comm, result, "the launch failed");
      const std::scoped_lock lock(comm.mutex);
      if (comm.state == CommState::kBusy) comm.state = CommState::kReady;
      --comm.late_launches;
      comm.changed.notify_all();
    }
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

std::uint64_t draw() {
  static std::atomic<std::uint64_t> draws = 0;
  std::uint64_t x =
      settings().seed * 0x9e3779b97f4a7c15u + ++draws * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

ncclResult_t begin_group() {
  ++group().depth;
  return kNcclSuccess;
}

ncclResult_t end_group() {
  Group& own = group();
  if (own.depth == 0) {
    violation("ncclGroupEnd", "without ncclGroupStart on this thread");
    return kNcclInvalidUsage;
  }
  if (--own.depth > 0) return kNcclSuccess;
  std::vector<Operation> operations;
  operations.swap(own.operations);
  const ncclResult_t error = own.error;
  own.error = kNcclSuccess;
  if (error != kNcclSuccess || operations.empty()) return error;
  ByComm sets = by_communicator(operations);
  bool may_be_late = true;
  for (std::vector<Operation>& set : sets) {
    if (const ncclResult_t wrong = check_group(set); wrong != kNcclSuccess)
      return wrong;
    may_be_late = may_be_late && !set.front().comm->is_blocking;
    for (Operation& operation : set) {
      if (!is_collective(operation)) continue;
      operation.number = ++operation.comm->collectives;
    }
  }
  // A wait for signals would hold up the caller.
  const bool must_be_late = may_be_late && waits_for_signals(sets);
  if (!may_be_late || (!must_be_late && draw() % 2 == 0))
    return launch_all(std::move(sets));
  launch_later(std::move(sets));
  return kNcclInProgress;
}

ncclResult_t fail_group(ncclResult_t error) {
  Group& own = group();
  if (own.depth > 0 && own.error == kNcclSuccess) own.error = error;
  return error;
}

ncclResult_t add_operation(Operation operation) {
  begin_group();
  group().operations.push_back(std::move(operation));
  return end_group();
}

}  // namespace fakegpu
