// A fake MPI of one process: sends and receives are matched by tag, in order, whenever
// a request is tested.
#include "tests/transport/fake_mpi.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "transport/mpi/wire.h"

namespace bluecomm::test {

void FakeMpi::check_running() {
  if (!ended_) return;
  ++late_calls_;
  throw std::runtime_error("MPI was called after MPI_Finalize");
}

void FakeMpi::before_finalize(std::function<void()> body) {
  before_end_.push_back(std::move(body));
}

void FakeMpi::finalize() {
  for (const auto& body : before_end_) body();
  ended_ = true;
}

void FakeMpi::hold(std::size_t allowed) {
  const LockGuard lock(mutex_);
  allowed_ = allowed;
}

std::vector<std::span<const std::byte>> FakeMpi::held() {
  const LockGuard lock(mutex_);
  std::vector<std::span<const std::byte>> held;
  for (const Message& send : sends_) {
    if (!send.done && send.from.size() > mpi::kMaxFrame) held.push_back(send.from);
  }
  return held;
}

mpi::RequestHandle FakeMpi::start(Side side, Message message) {
  check_running();
  const LockGuard lock(mutex_);
  message.request = ++last_request_;
  (side == Side::kSend ? sends_ : receives_).push_back(message);
  return mpi::RequestHandle{message.request};
}

mpi::RequestHandle FakeMpi::isend(std::span<const std::byte> bytes, int, int tag) {
  return start(Side::kSend,
               {.request = 0, .tag = tag, .from = bytes, .into = {}, .done = {}});
}

mpi::RequestHandle FakeMpi::irecv(std::span<std::byte> into, int, int tag) {
  return start(Side::kReceive,
               {.request = 0, .tag = tag, .from = {}, .into = into, .done = {}});
}

mpi::RequestHandle FakeMpi::ibcast(std::span<std::byte>, int) {
  throw std::logic_error("no transport broadcasts");
}

bool FakeMpi::is_held(const Message& send) const {
  return send.from.size() > mpi::kMaxFrame && allowed_ == 0;
}

void FakeMpi::deliver() {
  for (Message& send : sends_) {
    if (send.done || is_held(send)) continue;
    const auto receive = std::find_if(
        receives_.begin(), receives_.end(),
        [&](const Message& one) { return !one.done && one.tag == send.tag; });
    if (receive == receives_.end()) continue;
    if (send.from.size() > mpi::kMaxFrame && allowed_ != SIZE_MAX) --allowed_;
    std::copy(send.from.begin(), send.from.end(), receive->into.begin());
    send.done = mpi::Completion{};
    receive->done = mpi::Completion{.source = 0, .nbytes = send.from.size()};
  }
}

std::optional<mpi::Completion> FakeMpi::test(mpi::RequestHandle& request) {
  check_running();
  const LockGuard lock(mutex_);
  deliver();
  for (std::list<Message>* list : {&sends_, &receives_}) {
    const auto found = std::find_if(
        list->begin(), list->end(),
        [&](const Message& one) { return mpi::RequestHandle{one.request} == request; });
    if (found == list->end()) continue;
    const std::optional<mpi::Completion> done = found->done;
    if (done) list->erase(found);
    return done;
  }
  throw std::logic_error("a request was tested after its end");
}

void FakeMpi::test_some(std::span<mpi::RequestHandle> requests,
                        std::vector<mpi::IndexedCompletion>& ended) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (const auto done = test(requests[i])) ended.push_back({i, *done});
  }
}

void FakeMpi::cancel(mpi::RequestHandle& request) {
  check_running();
  const LockGuard lock(mutex_);
  for (Message& one : receives_) {
    if (mpi::RequestHandle{one.request} == request && !one.done) {
      one.done = mpi::Completion{.cancelled = true};
    }
  }
}

}  // namespace bluecomm::test
