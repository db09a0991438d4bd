#include "engine/account.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace bluecomm {
namespace {

using Seconds = std::chrono::duration<double>;

// What is over sooner is not worth a place in the trace.
constexpr std::chrono::microseconds kShortest{2};

std::size_t index_of(Kind kind) { return static_cast<std::size_t>(kind); }

double seconds(Clock::time_point begin, Clock::time_point end) {
  return std::max(Seconds(0), Seconds(end - begin)).count();
}

// Calls `visit(peer, sent, received, nbytes)` for each message of the plan.
template <typename Visit>
void for_each_message(const Plan& plan, Visit&& visit) {
  for (const Phase& phase : plan.phases) {
    for (const Send& send : phase.sends) visit(send.peer, 1, 0, send.bytes.size());
    for (const Gather& gather : phase.gathers) {
      for (const Source& source : gather.sources) {
        if (source.peer != kSelf) visit(source.peer, 0, 1, gather.dst.size());
      }
    }
  }
}

}  // namespace

Account::Account(int size, std::shared_ptr<Recorder> recorder)
    : recorder_(std::move(recorder)),
      first_operation_(recorder_ ? recorder_->operations_from() : 0),
      edges_(static_cast<std::size_t>(size)) {}

Event Account::event(EventType type, const Operation& operation,
                     Clock::time_point begin, Clock::time_point end) const {
  Event event;
  event.type = type;
  event.begin_ns = to_ns(begin);
  event.end_ns = std::max(event.begin_ns, to_ns(end));
  event.operation = first_operation_ + operation.id();
  event.thread = Recorder::thread();
  return event;
}

EdgeStats& Account::edge(int peer, Kind kind) {
  std::unique_ptr<Edges>& edges = edges_[static_cast<std::size_t>(peer)];
  if (!edges) edges = std::make_unique<Edges>();
  return (*edges)[index_of(kind)];
}

const Account::Edges* Account::edges(int peer) const {
  return edges_[static_cast<std::size_t>(peer)].get();
}

KindStats Account::kind(Kind kind) const {
  KindStats stats = kinds_[index_of(kind)];
  const auto blocked = blocked_ns_[index_of(kind)].load(std::memory_order_relaxed);
  stats.blocked_s = Seconds(std::chrono::nanoseconds(blocked)).count();
  return stats;
}

void Account::reset() {
  for (std::unique_ptr<Edges>& edges : edges_) edges.reset();
  kinds_.fill({});
  for (auto& blocked : blocked_ns_) blocked.store(0, std::memory_order_relaxed);
  since_ = Clock::now();
}

Event Account::call_event(EventType type, Notes& notes, const Operation& operation,
                          Clock::time_point end) {
  const Request& request = operation.request();
  if (notes.kind == 0) {
    notes.name = recorder_->name(request.name);
    notes.kind = recorder_->name(kind_name(request.kind));
  }
  Event call = event(type, operation, operation.started(), end);
  call.name = notes.name;
  call.label = notes.kind;
  call.a = request.group->id;
  call.c = operation.key().sequence;
  return call;
}

void Account::submitted(Notes& notes, const Operation& operation) {
  if (!recorder_) return;
  Event call = call_event(EventType::kEnqueue, notes, operation, Clock::now());
  call.b = operation.request().input.size();
  recorder_->add(call);
}

void Account::header(Notes& notes, const Operation& operation, int peer,
                     Clock::time_point now) {
  if (notes.waits) {
    notes.caller = peer;
    notes.called = now;
  }
  if (!recorder_) return;
  const Clock::time_point noticed = Clock::now();
  Event header = event(EventType::kHeader, operation, noticed, noticed);
  header.peer = peer;
  recorder_->add(header);
}

void Account::progress(Notes& notes, Operation& operation, bool changed,
                       Clock::time_point now) {
  if (changed) {
    end_wait(notes, operation, now);
    return;
  }
  const int blocker = operation.blocker();
  if (blocker < 0) return;
  notes.blocker = blocker;
  if (!notes.waits) {
    notes.waits = true;
    notes.since = now;
  }
}

void Account::end_wait(Notes& notes, const Operation& operation,
                       Clock::time_point now) {
  if (!notes.waits) return;
  notes.waits = false;
  const Kind kind = operation.request().kind;
  Clock::time_point called = notes.since;
  if (const int caller = std::exchange(notes.caller, -1); caller >= 0) {
    called = notes.called;
    const double late_s = seconds(notes.since, called);
    edge(caller, kind).wait_s += late_s;
    edge(caller, kind).late_s += late_s;
    if (recorder_) {
      Event late = event(EventType::kLate, operation, notes.since, called);
      late.peer = caller;
      recorder_->add(late);
    }
  }
  edge(notes.blocker, kind).wait_s += seconds(called, now);
  if (recorder_ && now > called) {
    Event data = event(EventType::kData, operation, called, now);
    data.peer = notes.blocker;
    recorder_->add(data);
  }
}

void Account::combined(const Operation& operation, Clock::time_point begin) {
  const Clock::time_point end = Clock::now();
  if (end - begin < kShortest) return;
  recorder_->add(event(EventType::kCombine, operation, begin, end));
}

void Account::ended(Notes& notes, const Operation& operation) {
  const Clock::time_point now = Clock::now();
  end_wait(notes, operation, now);
  KindStats& kind = kinds_[index_of(operation.request().kind)];
  ++kind.calls;
  kind.duration_s += seconds(operation.started(), now);
  if (operation.succeeded()) {
    count_messages(operation);
  } else {
    ++kind.failures;
  }
  if (!recorder_) return;
  Event whole = call_event(EventType::kOperation, notes, operation, now);
  whole.b = static_cast<std::uint64_t>(operation.status().code);
  recorder_->add(whole);
  if (operation.succeeded()) record_edges(operation, now);
}

void Account::count_messages(const Operation& operation) {
  const Kind kind = operation.request().kind;
  for_each_message(operation.plan(),
                   [&](int peer, unsigned sent, unsigned received, std::size_t nbytes) {
                     EdgeStats& stats = edge(peer, kind);
                     stats.messages_sent += sent;
                     stats.bytes_sent += sent * nbytes;
                     stats.messages_received += received;
                     stats.bytes_received += received * nbytes;
                   });
}

void Account::record_edges(const Operation& operation, Clock::time_point end) {
  edge_places_.resize(edges_.size());
  edge_events_.clear();
  for_each_message(operation.plan(), [&](int peer, unsigned sent, unsigned received,
                                         std::size_t nbytes) {
    std::uint32_t& place = edge_places_[static_cast<std::size_t>(peer)];
    if (place == 0) {
      edge_events_.push_back(event(EventType::kEdge, operation, end, end));
      edge_events_.back().peer = peer;
      place = static_cast<std::uint32_t>(edge_events_.size());
    }
    Event& edge = edge_events_[place - 1];
    edge.a += sent * nbytes;
    edge.b += received * nbytes;
    edge.label += sent;
    edge.c += received;
  });
  for (const Event& edge : edge_events_) {
    recorder_->add(edge);
    edge_places_[static_cast<std::size_t>(edge.peer)] = 0;
  }
}

void Account::blocked(const Operation& operation, Clock::time_point begin,
                      Clock::time_point end) {
  blocked_ns_[index_of(operation.request().kind)].fetch_add(to_ns(end) - to_ns(begin),
                                                            std::memory_order_relaxed);
  if (!recorder_ || end - begin < kShortest) return;
  recorder_->add(event(EventType::kBlocked, operation, begin, end));
}

}  // namespace bluecomm
