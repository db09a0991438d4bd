// Executes the plan of one operation: sends messages, gathers arriving ones, and goes
// from phase to phase. The dispatcher calls it under the progress lock.
#include "engine/operation.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

namespace bluecomm {

Operation::Operation(RequestId id, Call call, Plan plan, const Envelope& envelope,
                     OperationHost* host)
    : BaseRequest(id, request_kind(call.kind),
                  call.group->ranks[static_cast<std::size_t>(call.group->me)],
                  State::kQueued, call.deadline),
      call_(std::move(call)),
      plan_(std::move(plan)),
      envelope_(envelope),
      host_(host) {}

void Operation::start(std::span<Channel* const> channels) {
  channels_ = channels;
  state_ = State::kRunning;
  if (plan_.phases.empty()) {
    state_ = State::kDone;
    return;
  }
  begin_phase();
}

void Operation::begin_phase() {
  if (phase().prepare) phase().prepare();
  gathers_.clear();
  gathers_.reserve(phase().gathers.size());
  for (const Gather& gather : phase().gathers) {
    gathers_.emplace_back(gather, call_.dtype);
  }
  open_ = false;
  sends_.start(phase().sends, envelope_, phase_, channels_, lease_);
  if (!phase().bind) open_phase();

  std::vector<EarlyMessage> early = std::exchange(early_, {});
  for (EarlyMessage& one : early) {
    if (one.envelope.phase != phase_) {
      early_.push_back(std::move(one));
      continue;
    }
    const std::optional<SourceIndex> index =
        find_source(phase_, one.peer, one.envelope.slot);
    put(*index, one.peer, one.envelope, std::move(one.message));
  }
}

std::optional<Operation::SourceIndex> Operation::find_source(std::uint32_t phase,
                                                             int peer,
                                                             std::uint32_t slot) const {
  const std::vector<Gather>& gathers = plan_.phases[phase].gathers;
  for (std::size_t g = 0; g < gathers.size(); ++g) {
    for (std::size_t s = 0; s < gathers[g].sources.size(); ++s) {
      const Source& source = gathers[g].sources[s];
      if (source.peer == peer && source.slot == slot) return SourceIndex{g, s};
    }
  }
  return std::nullopt;
}

Operation::Delivery Operation::deliver(int peer, const Envelope& envelope,
                                       std::unique_ptr<Incoming>& message) {
  if (envelope.phase >= plan_.phases.size() || state_ == State::kDone ||
      (state_ == State::kRunning && envelope.phase < phase_)) {
    return Delivery::kUnexpected;
  }
  const std::optional<SourceIndex> index =
      find_source(envelope.phase, peer, envelope.slot);
  if (!index) return Delivery::kUnexpected;
  if (state_ == State::kRunning && envelope.phase == phase_) {
    if (gathers_[index->gather].has(index->source)) return Delivery::kUnexpected;
    put(*index, peer, envelope, std::move(message));
    return Delivery::kTaken;
  }
  for (const EarlyMessage& one : early_) {
    if (one.peer == peer && one.envelope.phase == envelope.phase &&
        one.envelope.slot == envelope.slot) {
      return Delivery::kUnexpected;
    }
  }
  early_.push_back({peer, envelope, std::move(message)});
  return Delivery::kTaken;
}

void Operation::put(const SourceIndex& index, int peer, const Envelope& envelope,
                    std::unique_ptr<Incoming> message) {
  const std::size_t announced = message->header().nbytes;
  if (!gathers_[index.gather].put(index.source, std::move(message), envelope.scale,
                                  sends_)) {
    fail_length(peer, announced, phase().gathers[index.gather].dst.size());
  }
}

void Operation::fail_length(int peer, std::size_t announced, std::size_t expected) {
  if (error_) return;
  error_ =
      Status{Code::kMismatch,
             label() + ": rank " + std::to_string(peer) + " announced " +
                 std::to_string(announced) + " bytes where " +
                 std::to_string(expected) + " were expected (phase " +
                 std::to_string(phase_) + "). All ranks must pass the same arguments.",
             peer};
}

// Binds the destinations once all headers have arrived. Returns whether they are known.
bool Operation::open_phase() {
  if (open_) return true;
  if (phase().bind) {
    for (std::size_t g = 0; g < gathers_.size(); ++g) {
      for (std::size_t s = 0; s < phase().gathers[g].sources.size(); ++s) {
        if (!gathers_[g].has(s)) return false;
      }
    }
    bind();
    if (error_) return false;
  }
  open_ = true;
  for (std::size_t g = 0; g < gathers_.size(); ++g) {
    const std::optional<std::size_t> wrong = gathers_[g].open(sends_);
    if (wrong) {
      const Gather& gather = phase().gathers[g];
      fail_length(gather.sources[*wrong].peer, gathers_[g].header(*wrong).nbytes,
                  gather.dst.size());
    }
  }
  return !error_;
}

void Operation::bind() {
  std::vector<Arrival> arrivals;
  Phase& phase = plan_.phases[phase_];
  for (std::size_t g = 0; g < gathers_.size(); ++g) {
    for (std::size_t s = 0; s < phase.gathers[g].sources.size(); ++s) {
      const Source& source = phase.gathers[g].sources[s];
      if (source.peer == kSelf) continue;
      const Header& header = gathers_[g].header(s);
      arrivals.push_back(
          {source.peer, source.slot, header.nbytes, read_envelope(header)->first_dim});
    }
  }
  try {
    phase.bind(arrivals, phase.gathers);
  } catch (const std::invalid_argument& error) {
    error_ = Status{Code::kMismatch, error.what(), -1};
  } catch (const std::exception& error) {
    error_ = Status{
        Code::kInternal,
        label() + ": cannot allocate memory for the result: " + error.what(), -1};
  }
}

bool Operation::advance(std::size_t budget) {
  bool changed = false;
  while (state_ == State::kRunning && !error_ && open_phase()) {
    for (GatherState& gather : gathers_) {
      if (gather.advance(budget, sends_)) changed = true;
    }
    if (!phase_done()) break;
    changed = true;
    if (phase_ + 1 == plan_.phases.size()) {
      finish({});
    } else {
      ++phase_;
      begin_phase();
    }
  }
  return changed;
}

bool Operation::phase_done() {
  for (const GatherState& gather : gathers_) {
    if (!gather.done()) return false;
  }
  const bool is_last = phase_ + 1 == plan_.phases.size();
  return is_last ? sends_.released() : sends_.phase_released();
}

void Operation::finish(Status status) {
  state_ = State::kDone;
  status_ = std::move(status);
  early_.clear();
  gathers_.clear();
  sends_ = PendingSends();
}

BaseRequest::Awaited Operation::awaited() const {
  const Unfinished now = unfinished();
  Awaited awaited{
      {now.not_taken.begin(), now.not_taken.end()}, "", now.received, now.expected};
  for (const Missing& missing : now.missing) awaited.ranks.insert(missing.peer);
  return awaited;
}

Operation::Unfinished Operation::unfinished() const {
  Unfinished result;
  if (state_ != State::kRunning) return result;
  for (std::size_t g = 0; g < gathers_.size(); ++g) {
    gathers_[g].collect_missing(result.missing);
    for (const Source& source : phase().gathers[g].sources) {
      if (source.peer != kSelf) result.expected += phase().gathers[g].dst.size();
    }
  }
  result.received = result.expected;
  for (const Missing& one : result.missing) {
    const std::size_t left = one.expected - one.received;
    result.received -= std::min(left, result.received);
  }
  sends_.collect_readers(result.not_taken);
  return result;
}

bool Operation::needs(int peer) const {
  if (state_ == State::kDone) return false;
  const std::uint32_t first_unstarted = state_ == State::kRunning ? phase_ + 1 : 0;
  for (std::size_t p = first_unstarted; p < plan_.phases.size(); ++p) {
    for (const Send& send : plan_.phases[p].sends) {
      if (send.peer == peer) return true;
    }
    for (const Gather& gather : plan_.phases[p].gathers) {
      for (const Source& source : gather.sources) {
        if (source.peer == peer) return true;
      }
    }
  }
  const Unfinished now = unfinished();
  for (const Missing& one : now.missing) {
    if (one.peer == peer) return true;
  }
  return std::find(now.not_taken.begin(), now.not_taken.end(), peer) !=
         now.not_taken.end();
}

bool Operation::awaits_header(int peer) const {
  if (state_ == State::kDone) return false;
  std::size_t awaited = 0;
  const std::uint32_t current = state_ == State::kRunning ? phase_ : 0;
  for (std::size_t p = current; p < plan_.phases.size(); ++p) {
    const std::vector<Gather>& gathers = plan_.phases[p].gathers;
    for (std::size_t g = 0; g < gathers.size(); ++g) {
      for (std::size_t s = 0; s < gathers[g].sources.size(); ++s) {
        if (gathers[g].sources[s].peer != peer) continue;
        const bool here =
            p == phase_ && state_ == State::kRunning && gathers_[g].has(s);
        if (!here) ++awaited;
      }
    }
  }
  for (const EarlyMessage& one : early_) {
    if (one.peer == peer) --awaited;
  }
  return awaited > 0;
}

int Operation::blocker() {
  if (state_ != State::kRunning) return -1;
  scratch_peers_.clear();
  for (const GatherState& gather : gathers_) gather.collect_blockers(scratch_peers_);
  if (scratch_peers_.empty()) sends_.collect_readers(scratch_peers_);
  return scratch_peers_.empty() ? -1 : scratch_peers_.front();
}

std::vector<int> Operation::peers() const {
  std::vector<int> peers;
  for (const Phase& phase : plan_.phases) {
    for (const Send& send : phase.sends) peers.push_back(send.peer);
    for (const Gather& gather : phase.gathers) {
      for (const Source& source : gather.sources) {
        if (source.peer != kSelf) peers.push_back(source.peer);
      }
    }
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

}  // namespace bluecomm
