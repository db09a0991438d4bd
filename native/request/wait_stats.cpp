#include "request/wait_stats.h"

#include <algorithm>
#include <utility>

namespace bluecomm {
namespace {

using Seconds = std::chrono::duration<double>;

// Shorter steps of an operation, and shorter waits, are not worth space in the trace.
constexpr std::chrono::microseconds kShortest{2};

double seconds(Clock::time_point begin, Clock::time_point end) {
  return std::max(Seconds(0), Seconds(end - begin)).count();
}

}  // namespace

WaitStats::WaitStats(int size, std::shared_ptr<Recorder> recorder)
    : recorder_(std::move(recorder)),
      first_id_(recorder_ ? recorder_->operations_from() : 0),
      edges_(static_cast<std::size_t>(size)) {}

WaitStats::~WaitStats() {
  for (const auto& edges : edges_) delete edges.load();
}

// --- Counting ------------------------------------------------------------------------

EdgeStats& WaitStats::edge(int peer, RequestKind kind) {
  std::atomic<EdgesByKind*>& slot = edges_[static_cast<std::size_t>(peer)];
  EdgesByKind* edges = slot.load(std::memory_order_acquire);
  if (edges == nullptr) {
    auto fresh = std::make_unique<EdgesByKind>();
    if (slot.compare_exchange_strong(edges, fresh.get())) edges = fresh.release();
  }
  return (*edges)[index_of(kind)];
}

void WaitStats::add_message(EdgeStats& edge, unsigned sent, unsigned received,
                            std::size_t nbytes) {
  edge.messages_sent += sent;
  edge.bytes_sent += sent * nbytes;
  edge.messages_received += received;
  edge.bytes_received += received * nbytes;
}

void WaitStats::submitted(BaseRequest& request) {
  if (!recorder_) return;
  Event call = call_event(EventType::kEnqueue, request, Clock::now());
  call.b = request.trace_fields().nbytes;
  recorder_->add(call);
}

void WaitStats::header(BaseRequest& request, int peer, Clock::time_point now) {
  if (request.notes.waits) {
    request.notes.caller = peer;
    request.notes.called = now;
  }
  if (!recorder_) return;
  const Clock::time_point noticed = Clock::now();
  Event header = event(EventType::kHeader, request, noticed, noticed);
  header.peer = peer;
  recorder_->add(header);
}

void WaitStats::told_caller(BaseRequest& request, int caller, Clock::time_point now) {
  if (!request.notes.waits) return;
  request.notes.caller = caller;
  request.notes.called = now;
}

void WaitStats::moved(BaseRequest& request, Clock::time_point now) {
  end_wait(request, now);
}

void WaitStats::stalled(BaseRequest& request, int blocker, Clock::time_point now) {
  request.notes.blocker = blocker;
  if (request.notes.waits) return;
  request.notes.waits = true;
  request.notes.since = now;
}

void WaitStats::end_wait(BaseRequest& request, Clock::time_point now) {
  WaitNotes& notes = request.notes;
  if (!notes.waits) return;
  notes.waits = false;
  Clock::time_point called = notes.since;
  if (const int caller = std::exchange(notes.caller, -1); caller >= 0) {
    called = notes.called;
    const double late_s = seconds(notes.since, called);
    edge(caller, request.kind()).wait_s += late_s;
    edge(caller, request.kind()).late_s += late_s;
    if (recorder_) {
      Event late = event(EventType::kLate, request, notes.since, called);
      late.peer = caller;
      recorder_->add(late);
    }
  }
  edge(notes.blocker, request.kind()).wait_s += seconds(called, now);
  if (recorder_ && now > called) {
    Event data = event(EventType::kData, request, called, now);
    data.peer = notes.blocker;
    recorder_->add(data);
  }
}

void WaitStats::combined(const BaseRequest& request, Clock::time_point begin) {
  if (!recorder_) return;
  const Clock::time_point end = Clock::now();
  // An operation combines in many steps, a call about a window in one.
  if (is_operation(request.kind()) && end - begin < kShortest) return;
  recorder_->add(event(EventType::kCombine, request, begin, end));
}

void WaitStats::ended(BaseRequest& request, int awaited) {
  const Clock::time_point now = Clock::now();
  count(request.kind(), [&] {
    if (awaited >= 0) stalled(request, awaited, request.started());
    end_wait(request, now);
    KindStats& kind = kinds_[index_of(request.kind())];
    ++kind.calls;
    kind.duration_s += seconds(request.started(), now);
    if (!request.status().ok()) ++kind.failures;
  });
  if (!recorder_) return;
  Event whole = call_event(EventType::kOperation, request, now);
  whole.b = static_cast<std::uint64_t>(request.status().code);
  recorder_->add(whole);
}

void WaitStats::blocked(const BaseRequest& request, Clock::time_point begin) {
  const Clock::time_point end = Clock::now();
  blocked_ns_[index_of(request.kind())].fetch_add(to_ns(end) - to_ns(begin),
                                                  std::memory_order_relaxed);
  if (!recorder_ || end - begin < kShortest) return;
  recorder_->add(event(EventType::kBlocked, request, begin, end));
}

void WaitStats::exchanged(const BaseRequest& request, int peer, Direction direction,
                          std::size_t nbytes) {
  const unsigned sent = direction == Direction::kSent ? 1 : 0;
  const unsigned received = 1 - sent;
  count(request.kind(),
        [&] { add_message(edge(peer, request.kind()), sent, received, nbytes); });
  if (!recorder_) return;
  const Clock::time_point now = Clock::now();
  Event edge = event(EventType::kEdge, request, now, now);
  edge.peer = peer;
  edge.a = sent * nbytes;
  edge.b = received * nbytes;
  edge.label = sent;
  edge.c = received;
  recorder_->add(edge);
}

// --- Recording -----------------------------------------------------------------------

Event WaitStats::event(EventType type, const BaseRequest& request,
                       Clock::time_point begin, Clock::time_point end) const {
  Event event;
  event.type = type;
  event.begin_ns = to_ns(begin);
  event.end_ns = std::max(event.begin_ns, to_ns(end));
  event.operation = first_id_ + request.id();
  event.thread = Recorder::thread();
  return event;
}

Event WaitStats::call_event(EventType type, BaseRequest& request,
                            Clock::time_point end) {
  WaitNotes& notes = request.notes;
  if (notes.kind == 0) {
    notes.name = recorder_->name(request.name());
    notes.kind = recorder_->name(request.kind_name());
  }
  Event call = event(type, request, request.started(), end);
  call.name = notes.name;
  call.label = notes.kind;
  const BaseRequest::TraceFields fields = request.trace_fields();
  call.a = fields.group;
  call.c = fields.sequence;
  return call;
}

void WaitStats::add_edge_event(const BaseRequest& operation, int peer, unsigned sent,
                               unsigned received, std::size_t nbytes) {
  edge_event_of_.resize(edges_.size());
  std::uint32_t& position = edge_event_of_[static_cast<std::size_t>(peer)];
  if (position == 0) {
    const Clock::time_point now = Clock::now();
    edge_events_.push_back(event(EventType::kEdge, operation, now, now));
    edge_events_.back().peer = peer;
    position = static_cast<std::uint32_t>(edge_events_.size());
  }
  Event& edge = edge_events_[position - 1];
  edge.a += sent * nbytes;
  edge.b += received * nbytes;
  edge.label += sent;
  edge.c += received;
}

void WaitStats::record_edge_events() {
  for (const Event& edge : edge_events_) {
    recorder_->add(edge);
    edge_event_of_[static_cast<std::size_t>(edge.peer)] = 0;
  }
  edge_events_.clear();
}

// --- Reports -------------------------------------------------------------------------

WaitStats::Edges WaitStats::edges(int peer) const {
  Edges used;
  const EdgesByKind* const edges =
      edges_[static_cast<std::size_t>(peer)].load(std::memory_order_acquire);
  if (edges == nullptr) return used;
  const LockGuard lock(window_mutex_);
  for (std::size_t k = 0; k < kRequestKinds; ++k) {
    if ((*edges)[k] == EdgeStats{}) continue;
    used.emplace_back(static_cast<RequestKind>(k), (*edges)[k]);
  }
  return used;
}

WaitStats::Kinds WaitStats::kinds() const {
  Kinds used;
  const LockGuard lock(window_mutex_);
  for (std::size_t k = 0; k < kRequestKinds; ++k) {
    if (kinds_[k].calls == 0) continue;
    KindStats stats = kinds_[k];
    const std::chrono::nanoseconds blocked(blocked_ns_[k].load());
    stats.blocked_s = Seconds(blocked).count();
    used.emplace_back(static_cast<RequestKind>(k), stats);
  }
  return used;
}

void WaitStats::reset() {
  const LockGuard lock(window_mutex_);
  for (const auto& slot : edges_) {
    if (EdgesByKind* const edges = slot.load(std::memory_order_acquire)) {
      edges->fill({});
    }
  }
  kinds_.fill({});
  for (auto& blocked : blocked_ns_) blocked.store(0, std::memory_order_relaxed);
  dropped_.store(0, std::memory_order_relaxed);
  replaced_.store(0, std::memory_order_relaxed);
  overlapped_.store(0, std::memory_order_relaxed);
  since_ = Clock::now();
}

}  // namespace bluecomm
