#include "window/account.h"

#include <algorithm>

namespace bluecomm {
namespace {

// What is over sooner is not worth a place in the trace.
constexpr std::chrono::microseconds kShortest{2};

double seconds(WindowAccount::Clock::time_point begin,
               WindowAccount::Clock::time_point end) {
  return std::max(0.0, std::chrono::duration<double>(end - begin).count());
}

}  // namespace

std::string_view call_name(WindowCall kind) {
  switch (kind) {
    case WindowCall::kCreate:
      return "win_create";
    case WindowCall::kPut:
      return "win_put";
    case WindowCall::kAccumulate:
      return "win_accumulate";
    case WindowCall::kGet:
      return "win_get";
    case WindowCall::kUpdate:
      return "win_update";
    case WindowCall::kMutex:
      return "win_mutex";
  }
  return "?";
}

WindowAccount::WindowAccount(int size, std::shared_ptr<Recorder> recorder)
    : recorder_(std::move(recorder)),
      first_number_(recorder_ ? recorder_->operations_from() : 0),
      edges_(static_cast<std::size_t>(size)) {}

WindowAccount::Call WindowAccount::begin(WindowCall kind, const std::string& window) {
  Call call{kind, window, Clock::now(), 0};
  const std::scoped_lock lock(mutex_);
  call.number = ++calls_;
  return call;
}

// Only if there is a recorder.
Event WindowAccount::event(EventType type, const Call& call, Clock::time_point begin,
                           Clock::time_point end) const {
  Event event;
  event.type = type;
  event.begin_ns = to_ns(begin);
  event.end_ns = std::max(event.begin_ns, to_ns(end));
  event.operation = first_number_ + call.number;
  event.name = recorder_->name(call.window);
  event.label = recorder_->name(call_name(call.kind));
  event.c = static_cast<std::uint32_t>(call.number);
  event.thread = Recorder::thread();
  return event;
}

void WindowAccount::submitted(const Call& call) {
  if (!recorder_) return;
  recorder_->add(event(EventType::kEnqueue, call, call.began, Clock::now()));
}

void WindowAccount::moved(const Call& call, Clock::time_point begin) {
  if (!recorder_) return;
  recorder_->add(event(EventType::kCombine, call, begin, Clock::now()));
}

EdgeStats& WindowAccount::edge(int peer, WindowCall kind) {
  auto& edges = edges_[static_cast<std::size_t>(peer)];
  if (!edges) edges = std::make_unique<ByCall<EdgeStats>>();
  return (*edges)[static_cast<std::size_t>(kind)];
}

void WindowAccount::exchanged(const Call& call, int peer, Way way, std::size_t nbytes) {
  const std::uint32_t sent = way == Way::kSent ? 1 : 0;
  const std::uint32_t received = 1 - sent;
  {
    const std::scoped_lock lock(mutex_);
    EdgeStats& stats = edge(peer, call.kind);
    stats.messages_sent += sent;
    stats.bytes_sent += sent * nbytes;
    stats.messages_received += received;
    stats.bytes_received += received * nbytes;
  }
  if (!recorder_) return;
  const Clock::time_point now = Clock::now();
  Event edge = event(EventType::kEdge, call, now, now);
  edge.peer = peer;
  edge.a = sent * nbytes;
  edge.b = received * nbytes;
  edge.label = sent;
  edge.c = received;
  recorder_->add(edge);
}

void WindowAccount::blocked(const Call& call, Clock::time_point begin) {
  const Clock::time_point end = Clock::now();
  {
    const std::scoped_lock lock(mutex_);
    kind(call.kind).blocked_s += seconds(begin, end);
  }
  if (!recorder_ || end - begin < kShortest) return;
  recorder_->add(event(EventType::kBlocked, call, begin, end));
}

void WindowAccount::ended(const Call& call, Code code, int peer) {
  const Clock::time_point end = Clock::now();
  {
    const std::scoped_lock lock(mutex_);
    KindStats& stats = kind(call.kind);
    ++stats.calls;
    if (code != Code::kOk) ++stats.failures;
    stats.duration_s += seconds(call.began, end);
    if (peer >= 0) edge(peer, call.kind).wait_s += seconds(call.began, end);
  }
  if (!recorder_) return;
  if (peer >= 0) {
    Event wait = event(EventType::kData, call, call.began, end);
    wait.peer = peer;
    recorder_->add(wait);
  }
  Event whole = event(EventType::kOperation, call, call.began, end);
  whole.b = static_cast<std::uint64_t>(code);
  recorder_->add(whole);
}

WindowAccount::Edges WindowAccount::edges(int peer) const {
  Edges used;
  const std::scoped_lock lock(mutex_);
  const auto& edges = edges_[static_cast<std::size_t>(peer)];
  for (std::size_t k = 0; edges && k < kWindowCalls; ++k) {
    if ((*edges)[k] == EdgeStats{}) continue;
    used.emplace_back(static_cast<WindowCall>(k), (*edges)[k]);
  }
  return used;
}

WindowAccount::Kinds WindowAccount::kinds() const {
  Kinds used;
  const std::scoped_lock lock(mutex_);
  for (std::size_t k = 0; k < kWindowCalls; ++k) {
    if (kinds_[k].calls == 0) continue;
    used.emplace_back(static_cast<WindowCall>(k), kinds_[k]);
  }
  return used;
}

void WindowAccount::reset() {
  const std::scoped_lock lock(mutex_);
  for (auto& edges : edges_) edges.reset();
  kinds_.fill({});
}

}  // namespace bluecomm
