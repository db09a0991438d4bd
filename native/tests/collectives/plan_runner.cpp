// Treats a rank's memory as badly as the rules of engine/plan.h allow; see simulator.h.
// PlanRules checks that the plan follows them.
#include "tests/collectives/plan_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/combine.h"

namespace bluecomm::test {
namespace {

constexpr std::size_t kMaxEager = 4096;
constexpr std::size_t kCut = 64;  // chunks are multiples of this, as in the transports

// A gather of a running phase.
struct GatherTurn {
  SimulatedPhase* running;
  std::size_t gather;
};

// The transport may receive a copy into its destination if nobody reads that any more.
bool uses_scratch(const Gather& gather) {
  const bool is_received_in_place =
      gather.combine == Combine::kCopy && gather.follows_reads;
  return gather.overwrites_sent && !is_received_in_place;
}

}  // namespace

bool PlanRunner::step() {
  if (may_start_phase() && (state_.running.empty() || random_() % 4 == 0)) {
    start_phase();
    return true;
  }
  supply();
  std::vector<GatherTurn> works;
  for (SimulatedPhase& running : state_.running) {
    if (!running.is_bound && !bind(running)) break;
    for (std::size_t i = 0; i < running.progress.size(); ++i) {
      works.push_back({&running, i});
    }
  }
  std::shuffle(works.begin(), works.end(), random_);
  for (const GatherTurn& work : works) {
    if (combine_chunk(*work.running, work.gather)) return true;
    if (write_back(*work.running, work.gather)) return true;
  }
  if (end_phase()) return true;
  if (!may_start_phase()) return false;
  start_phase();
  return true;
}

std::size_t PlanRunner::chunk_length(std::size_t rest) {
  const std::size_t blocks = (rest + kCut - 1) / kCut;
  std::uniform_int_distribution<std::size_t> draw(1, blocks);
  return std::min(rest, draw(random_) * kCut);
}

bool PlanRunner::may_start_phase() const {
  const std::vector<Phase>& phases = state_.member.plan.phases;
  if (state_.next_phase == phases.size()) return false;
  if (state_.running.empty()) return true;
  return phases[state_.next_phase].overlaps && state_.running.back().is_bound;
}

void PlanRunner::start_phase() {
  const std::size_t number = state_.next_phase++;
  Phase& phase = state_.member.plan.phases[number];
  rules_.check_start(number, phase);
  if (phase.prepare) phase.prepare();
  for (const Send& send : phase.sends) {
    state_.unreleased.emplace_back(number, &send);
    post(number, send);
  }
  state_.running.push_back(
      {number, phase, !phase.bind, std::vector<GatherProgress>(phase.gathers.size())});
  if (state_.running.back().is_bound) begin_gathers(state_.running.back());
}

// Shows the peers what has been computed of the sends.
void PlanRunner::supply() {
  for (const auto& [number, send] : state_.unreleased) {
    if (!state_.member.plan.phases[number].overlaps) continue;
    InFlight& message =
        state_.network.at({state_.rank, send->peer, number, send->slot});
    message.final_nbytes =
        std::max(message.final_nbytes, state_.ready_prefix(send->bytes, number));
  }
}

void PlanRunner::post(std::size_t phase, const Send& send) {
  rules_.check_send(phase, send);
  InFlight& message = state_.network[{state_.rank, send.peer, phase, send.slot}];
  message.scale = send.scale;
  message.first_dim = send.first_dim;
  message.payload = send.bytes;
  message.final_nbytes = state_.ready_prefix(send.bytes, phase);
  const bool is_final = message.final_nbytes == send.bytes.size();
  if (is_final && send.bytes.size() <= kMaxEager && random_() % 2 == 0) {
    message.eager.assign(send.bytes.begin(), send.bytes.end());
    message.payload = message.eager;
    message.released = message.eager.size();
  }
}

// Returns whether every awaited header has arrived, and so the gathers have memory.
bool PlanRunner::bind(SimulatedPhase& running) {
  std::vector<Arrival> arrivals;
  for (const Gather& gather : running.phase.gathers) {
    for (const Source& source : gather.sources) {
      if (source.peer == kSelf) continue;
      const InFlight* const message = state_.find(source, running.number);
      if (message == nullptr) return false;
      arrivals.push_back(
          {source.peer, source.slot, message->payload.size(), message->first_dim});
    }
  }
  running.phase.bind(arrivals, running.phase.gathers);
  running.is_bound = true;
  begin_gathers(running);
  return true;
}

// Poisons the destinations that no source reads.
void PlanRunner::begin_gathers(const SimulatedPhase& running) {
  rules_.check_memory(running);
  if (running.phase.overlaps) return;  // earlier phases still use the memory
  for (const Gather& gather : running.phase.gathers) {
    const bool is_read = std::any_of(
        gather.sources.begin(), gather.sources.end(),
        [&](const Source& source) { return overlap(source.own, gather.dst); });
    if (!is_read && !gather.overwrites_sent) {
      std::fill(gather.dst.begin(), gather.dst.end(), kPoison);
    }
  }
}

// Returns whether the headers of all sources have arrived.
bool PlanRunner::accept(const SimulatedPhase& running, const Gather& gather,
                        GatherProgress& progress) {
  if (progress.is_accepted) return true;
  std::vector<InFlight*> messages;
  for (const Source& source : gather.sources) {
    messages.push_back(source.peer == kSelf ? nullptr
                                            : state_.find(source, running.number));
    if (source.peer != kSelf && messages.back() == nullptr) return false;
  }
  for (InFlight* message : messages) {
    if (message == nullptr) continue;
    rules_.check_message(running, gather, *message);
    message->is_received = true;
  }
  progress.messages = std::move(messages);
  progress.is_accepted = true;
  if (uses_scratch(gather)) progress.scratch.resize(gather.dst.size());
  return true;
}

// Returns how many bytes can be combined from `progress.combined` on.
std::size_t PlanRunner::available(const SimulatedPhase& running, const Gather& gather,
                                  const GatherProgress& progress) const {
  const std::size_t start = progress.combined;
  std::size_t end = gather.dst.size();
  for (std::size_t s = 0; s < gather.sources.size(); ++s) {
    const InFlight* const message = progress.messages[s];
    end = std::min(end, message != nullptr ? message->final_nbytes
                                           : state_.ready_prefix(gather.sources[s].own,
                                                                 running.number));
  }
  if (end < gather.dst.size()) end -= end % kCut;
  return end - std::min(start, end);
}

bool PlanRunner::combine_chunk(SimulatedPhase& running, std::size_t index) {
  const Gather& gather = running.phase.gathers[index];
  GatherProgress& progress = running.progress[index];
  if (!accept(running, gather, progress)) return false;
  const std::size_t start = progress.combined;
  const std::size_t rest = available(running, gather, progress);
  if (rest == 0) return false;
  const std::size_t length = chunk_length(rest);

  std::vector<Term> terms;
  for (std::size_t s = 0; s < gather.sources.size(); ++s) {
    const Source& source = gather.sources[s];
    const InFlight* message = progress.messages[s];
    const ConstBytes bytes = message == nullptr ? source.own : message->payload;
    const double scale = message == nullptr ? 1.0 : message->scale;
    terms.push_back({bytes.data() + start, source.weight * scale});
  }
  const std::span<std::byte> whole =
      uses_scratch(gather) ? std::span(progress.scratch) : gather.dst;
  const std::span<std::byte> dst = whole.subspan(start, length);
  rules_.check_overwrite(running, dst);
  switch (gather.combine) {
    case Combine::kCopy:
      if (terms.size() != 1) {
        rules_.broken(running.number, "a copy has several sources");
      }
      std::copy_n(terms[0].data, length, dst.data());
      break;
    case Combine::kWeighted:
      combine_weighted(dst, terms, gather.post_scale, state_.member.call.dtype);
      break;
    case Combine::kReduce:
      combine_reduce(dst, terms, gather.op, gather.post_scale,
                     state_.member.call.dtype);
      break;
  }
  progress.combined += length;
  if (!uses_scratch(gather)) progress.written = progress.combined;
  for (InFlight* message : progress.messages) {
    if (message == nullptr) continue;
    message->released = std::max(message->released, progress.combined);
  }
  return true;
}

// Copies bytes from scratch memory back to ranges that peers no longer read.
bool PlanRunner::write_back(SimulatedPhase& running, std::size_t index) {
  const Gather& gather = running.phase.gathers[index];
  GatherProgress& progress = running.progress[index];
  if (progress.written == progress.combined) return false;
  const std::size_t length = chunk_length(progress.combined - progress.written);
  const std::span<std::byte> dst = gather.dst.subspan(progress.written, length);
  for (const auto& [number, send] : state_.unreleased) {
    if (number <= running.number && state_.is_read(number, *send, dst)) return false;
  }
  rules_.check_overwrite(running, dst);
  std::copy_n(progress.scratch.begin() + static_cast<std::ptrdiff_t>(progress.written),
              length, dst.begin());
  progress.written += length;
  return true;
}

bool PlanRunner::end_phase() {
  if (state_.running.empty()) return false;
  const SimulatedPhase& running = state_.running.front();
  for (std::size_t i = 0; i < running.progress.size(); ++i) {
    const GatherProgress& progress = running.progress[i];
    const bool is_done =
        progress.is_accepted && progress.written == running.phase.gathers[i].dst.size();
    if (!is_done) return false;
  }
  std::erase_if(state_.unreleased, [&](const auto& sent) {
    const auto& [number, send] = sent;
    return state_.released(number, *send) == send->bytes.size();
  });
  const bool is_last = running.number + 1 == state_.member.plan.phases.size();
  for (const auto& [number, send] : state_.unreleased) {
    if (number <= running.number && (is_last || !send->lingers)) return false;
  }
  state_.running.pop_front();
  return true;
}

}  // namespace bluecomm::test
