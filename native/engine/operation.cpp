// Executes the plan of one operation: sends messages, gathers arriving ones, and goes
// from phase to phase. Phases that overlap run together: ready_prefix() says which part
// of the memory that they read has been computed. The dispatcher calls it under the
// progress lock.
#include "engine/operation.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <stdexcept>
#include <utility>

#include "engine/layout.h"

namespace bluecomm {
namespace {

// The beginning of a range, up to the first of several parts that it lacks.
class WrittenPrefix {
 public:
  explicit WrittenPrefix(std::span<const std::byte> whole) : bytes_(whole) {}

  void end_at(std::span<const std::byte> lacking) {
    const std::less<const std::byte*> before;
    if (lacking.empty() || bytes_.empty() ||
        !before(bytes_.data(), lacking.data() + lacking.size()) ||
        !before(lacking.data(), bytes_.data() + bytes_.size())) {
      return;
    }
    bytes_ = bytes_.first(before(bytes_.data(), lacking.data())
                              ? static_cast<std::size_t>(lacking.data() - bytes_.data())
                              : 0);
  }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

Operation::Operation(RequestId id, Call call, Plan plan, const Envelope& envelope,
                     OperationHost* host)
    : BaseRequest(id, request_kind(call.kind),
                  call.group->ranks[static_cast<std::size_t>(call.group->me)],
                  State::kQueued, call.deadline),
      call_(std::move(call)),
      plan_(std::move(plan)),
      envelope_(envelope),
      host_(host),
      has_input_(call_.gate == nullptr) {}

BaseRequest::TraceFields Operation::trace_fields() const {
  // A call with a ticket passes no memory.
  const std::size_t nbytes =
      call_.ticket ? nbytes_of(call_.shape, call_.dtype) : call_.input.size();
  return {call_.group->id, envelope_.key.sequence, nbytes};
}

void Operation::poll_input() {
  if (has_input_ || error_) return;
  if (const std::optional<Status> opened = call_.gate->poll()) {
    if (!opened->ok()) return fail_with(*opened);
    has_input_ = true;
  } else {
    input_written_ = call_.gate->written();
  }
}

bool Operation::may_start() const {
  if (has_input_) return true;
  // `prepare` and `bind` may read the input as a whole.
  const auto reads_in_order = [](const Phase& phase) {
    return !phase.prepare && !phase.bind;
  };
  return input_written_ > 0 && !plan_.phases.empty() &&
         std::all_of(plan_.phases.begin(), plan_.phases.end(), reads_in_order);
}

void Operation::start(std::span<Channel* const> channels) {
  channels_ = channels;
  keeps_in_step_ = keeps_in_step();
  state_ = State::kRunning;
  starts_early_ = is_filling();
  if (plan_.phases.empty()) {
    state_ = State::kDone;
    return;
  }
  begin_phases();
}

bool Operation::may_begin_phase() const {
  if (next_phase_ == plan_.phases.size()) return false;
  if (running_.empty()) return true;
  return plan_.phases[next_phase_].overlaps && running_.back().is_open &&
         running_.size() < kMaxRunning;
}

void Operation::begin_phases() {
  while (!error_ && may_begin_phase()) begin_phase();
  supply_sends();
}

void Operation::begin_phase() {
  const std::uint32_t number = next_phase_++;
  Phase& phase = plan_.phases[number];
  if (phase.prepare) {
    try {
      phase.prepare();
    } catch (const std::invalid_argument& error) {
      error_ = Status{Code::kMismatch, label() + ": " + error.what(), -1};
      return;
    } catch (const TicketFailure& failure) {
      fail_with(failure.status());
      return;
    }
  }
  RunningPhase& running = running_.emplace_back(RunningPhase{number, {}});
  running.gathers.reserve(phase.gathers.size());
  for (Gather& gather : phase.gathers) {
    running.gathers.emplace_back(gather, number, call_.dtype);
  }
  const bool is_followed =
      next_phase_ < plan_.phases.size() && plan_.phases[next_phase_].overlaps;
  using Growing = PendingSends::Growing;
  const Growing of_phases =
      phase.overlaps || is_followed ? Growing::kBetweenMachines : Growing::kNone;
  sends_.add(phase.sends, number, is_filling() ? Growing::kAll : of_phases, context());
  if (!phase.bind) open_phase(running);

  std::vector<EarlyMessage> early = std::exchange(early_, {});
  for (EarlyMessage& one : early) {
    if (one.envelope.phase != number) {
      early_.push_back(std::move(one));
      continue;
    }
    const std::optional<SourceIndex> index =
        find_source(number, one.peer, one.envelope.slot);
    put(running, *index, one.peer, one.envelope, std::move(one.message));
  }
}

Operation::RunningPhase* Operation::find_running(std::uint32_t phase) {
  const auto found =
      std::find_if(running_.begin(), running_.end(),
                   [phase](const RunningPhase& one) { return one.number == phase; });
  return found == running_.end() ? nullptr : &*found;
}

const Operation::RunningPhase* Operation::find_running(std::uint32_t phase) const {
  return const_cast<Operation*>(this)->find_running(phase);
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
  const std::uint32_t number = envelope.phase;
  RunningPhase* const running = find_running(number);
  if (number >= plan_.phases.size() || state_ == State::kDone ||
      (has_begun(number) && running == nullptr)) {
    return Delivery::kUnexpected;
  }
  const std::optional<SourceIndex> index = find_source(number, peer, envelope.slot);
  if (!index) return Delivery::kUnexpected;
  if (plan_.last_caller && number == 0 && state_ == State::kRunning) {
    plan_.last_caller->heard = peer;
  }
  if (running != nullptr) {
    if (running->gathers[index->gather].has(index->source)) {
      return Delivery::kUnexpected;
    }
    put(*running, *index, peer, envelope, std::move(message));
    return Delivery::kTaken;
  }
  for (const EarlyMessage& one : early_) {
    if (one.peer == peer && one.envelope.phase == number &&
        one.envelope.slot == envelope.slot) {
      return Delivery::kUnexpected;
    }
  }
  early_.push_back({peer, envelope, std::move(message)});
  return Delivery::kTaken;
}

void Operation::put(RunningPhase& running, const SourceIndex& index, int peer,
                    const Envelope& envelope, std::unique_ptr<Incoming> message) {
  const std::size_t announced = message->header().nbytes;
  if (!running.gathers[index.gather].put(index.source, std::move(message),
                                         envelope.scale, sends_)) {
    fail_length(running.number, peer, announced,
                phase(running).gathers[index.gather].dst.size());
  }
}

void Operation::fail_length(std::uint32_t phase, int peer, std::size_t announced,
                            std::size_t expected) {
  if (error_) return;
  error_ =
      Status{Code::kMismatch,
             label() + ": rank " + std::to_string(peer) + " announced " +
                 std::to_string(announced) + " bytes where " +
                 std::to_string(expected) + " were expected (phase " +
                 std::to_string(phase) + "). All ranks must pass the same arguments.",
             peer};
}

// Binds the destinations once all headers have arrived. Returns whether they are known.
bool Operation::open_phase(RunningPhase& running) {
  if (running.is_open) return true;
  const std::vector<Gather>& gathers = phase(running).gathers;
  if (phase(running).bind) {
    for (std::size_t g = 0; g < gathers.size(); ++g) {
      for (std::size_t s = 0; s < gathers[g].sources.size(); ++s) {
        if (!running.gathers[g].has(s)) return false;
      }
    }
    bind(running);
    if (error_) return false;
  }
  running.is_open = true;
  for (std::size_t g = 0; g < gathers.size(); ++g) {
    const std::optional<std::size_t> wrong = running.gathers[g].open(sends_);
    if (wrong) {
      fail_length(running.number, gathers[g].sources[*wrong].peer,
                  running.gathers[g].header(*wrong).nbytes, gathers[g].dst.size());
    }
  }
  return !error_;
}

void Operation::bind(RunningPhase& running) {
  std::vector<Arrival> arrivals;
  Phase& phase = plan_.phases[running.number];
  for (std::size_t g = 0; g < phase.gathers.size(); ++g) {
    for (std::size_t s = 0; s < phase.gathers[g].sources.size(); ++s) {
      const Source& source = phase.gathers[g].sources[s];
      if (source.peer == kSelf) continue;
      const Header& header = running.gathers[g].header(s);
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
  if (state_ == State::kRunning && call_.ticket && !error_) check_ticket();
  while (state_ == State::kRunning && !error_) {
    for (RunningPhase& running : running_) {
      if (!open_phase(running)) break;
      limit_own_sources(running);
      for (GatherState& gather : running.gathers) {
        if (gather.advance(budget, sends_)) changed = true;
        if (lost_ >= 0 && gather.has_invalid_bytes()) {
          keep_own(gather);
          changed = true;
        }
      }
    }
    if (error_) break;
    if (supply_sends()) changed = true;
    if (!end_phases()) break;
    changed = true;
    if (running_.empty() && next_phase_ == plan_.phases.size()) {
      finish({});
    } else {
      begin_phases();
    }
  }
  return changed;
}

void Operation::limit_own_sources(RunningPhase& running) {
  if (!phase(running).overlaps && !starts_early_) return;
  for (GatherState& gather : running.gathers) {
    if (gather.done()) continue;
    std::size_t ready = gather.gather().dst.size();
    for (const Source& source : gather.gather().sources) {
      if (source.peer != kSelf) continue;
      ready = std::min(ready, ready_prefix(source.own, running.number));
    }
    gather.set_own_ready(ready);
  }
}

// Returns how much of the beginning of `bytes` has been written: by the program's
// device, if they belong to the input, and by the gathers of the phases before `phase`,
// as far as these write it.
std::size_t Operation::ready_prefix(std::span<const std::byte> bytes,
                                    std::uint32_t phase) const {
  WrittenPrefix ready(bytes);
  ready.end_at(unwritten_input());
  for (const RunningPhase& running : running_) {
    if (running.number >= phase) break;
    for (const GatherState& gather : running.gathers) ready.end_at(gather.unwritten());
  }
  return ready.size();
}

std::span<const std::byte> Operation::unwritten_input() const {
  if (has_input_) return {};
  return call_.input.subspan(std::min(input_written_, call_.input.size()));
}

std::size_t Operation::final_prefix() const {
  if (has_begun_anew_) return 0;
  if (done()) return status_.ok() ? call_.output.size() : 0;
  if (state_ != State::kRunning) return 0;
  WrittenPrefix final(call_.output);
  final.end_at(unwritten_input());
  for (const RunningPhase& running : running_) {
    if (!running.is_open) return 0;
    for (const GatherState& gather : running.gathers) final.end_at(gather.unwritten());
  }
  for (std::size_t p = next_phase_; p < plan_.phases.size(); ++p) {
    const Phase& phase = plan_.phases[p];
    if (phase.prepare || phase.bind) return 0;
    for (const Gather& gather : phase.gathers) final.end_at(gather.dst);
  }
  return final.size();
}

bool Operation::supply_sends() {
  return sends_.supply(
      [this](std::span<const std::byte> bytes, std::uint32_t phase) {
        return ready_prefix(bytes, phase);
      },
      sends_.is_limited() && keeps_in_step_ ? received() : Channel::kAnyLead,
      context());
}

// Returns the number of sources on other machines.
std::size_t Operation::remote_sources(const Gather& gather) const {
  const auto is_remote = [this](const Source& source) {
    return source.peer != kSelf &&
           !channels_[static_cast<std::size_t>(source.peer)]->shares_memory();
  };
  return static_cast<std::size_t>(
      std::count_if(gather.sources.begin(), gather.sources.end(), is_remote));
}

// Returns whether each message from another machine can be combined without another
// one, as in a ring. Otherwise bytes may wait for those of a third rank, and ranks that
// limit what they send could wait for each other in a circle.
bool Operation::keeps_in_step() const {
  if (plan_.phases.empty() || !plan_.phases.back().overlaps) return false;
  for (const Phase& phase : plan_.phases) {
    for (const Gather& gather : phase.gathers) {
      if (remote_sources(gather) > 1) return false;
    }
  }
  return true;
}

// Returns the bytes that were received from other machines and combined, or kAnyLead if
// no more will come.
std::size_t Operation::received() const {
  std::size_t nbytes = received_before_;
  bool awaits_more = false;
  for (const RunningPhase& running : running_) {
    for (const GatherState& gather : running.gathers) {
      const std::size_t sources = remote_sources(gather.gather());
      nbytes += sources * gather.combined();
      awaits_more |= sources > 0 && !gather.done();
    }
  }
  for (std::size_t p = next_phase_; p < plan_.phases.size() && !awaits_more; ++p) {
    for (const Gather& gather : plan_.phases[p].gathers) {
      awaits_more |= remote_sources(gather) > 0;
    }
  }
  return awaits_more ? nbytes : Channel::kAnyLead;
}

// Ends the phases that are over, up to the first one that is not. Returns whether there
// was any.
bool Operation::end_phases() {
  bool any = false;
  while (!running_.empty() && is_over(running_.front())) {
    for (const GatherState& gather : running_.front().gathers) {
      received_before_ += remote_sources(gather.gather()) * gather.combined();
    }
    running_.pop_front();
    any = true;
  }
  return any;
}

bool Operation::is_over(const RunningPhase& running) {
  for (const GatherState& gather : running.gathers) {
    if (!gather.done()) return false;
  }
  const bool is_last = running.number + 1 == plan_.phases.size();
  if (is_last && is_filling()) return false;  // the input may still fail
  return (is_last ? sends_.released() : sends_.phase_released(running.number)) &&
         has_passed(phase(running));
}

// Polls the gate of a phase whose messages have been exchanged. Returns whether it has
// opened; if it has failed, there is an error().
bool Operation::has_passed(const Phase& phase) {
  if (!phase.gate) return true;
  const std::optional<Status> opened = phase.gate->poll();
  awaits_gate_ = !opened;
  if (!opened) return false;
  if (!opened->ok()) fail_with(*opened);
  return opened->ok();
}

// Notices that the library will not take the call, whatever the other ranks do.
void Operation::check_ticket() {
  const std::optional<Status> taken = call_.ticket->poll();
  if (taken && !taken->ok()) fail_with(*taken);
}

void Operation::fail_with(const Status& reason) {
  error_ = Status{reason.code, label() + ": " + reason.text, reason.rank};
}

void Operation::finish(Status status) {
  state_ = State::kDone;
  status_ = std::move(status);
  if (call_.ticket && !status_.ok()) call_.ticket->fail(status_);
  early_.clear();
  running_.clear();
  sends_ = PendingSends();
}

}  // namespace bluecomm
