#include "tests/collectives/plan_rules.h"

namespace bluecomm::test {
namespace {

bool equal(ConstBytes a, ConstBytes b) {
  return a.data() == b.data() && a.size() == b.size();
}

}  // namespace

void PlanRules::broken(std::size_t phase, const std::string& rule) const {
  throw RuleBroken(rule + " (rank " + std::to_string(state_.rank) + ", phase " +
                   std::to_string(phase) + ")");
}

void PlanRules::check_start(std::size_t number, const Phase& phase) const {
  if (phase.overlaps && (phase.prepare || phase.bind)) {
    broken(number, "a phase that overlaps has `prepare` or `bind`");
  }
}

void PlanRules::check_send(std::size_t phase, const Send& send) const {
  if (!holds(state_.member.input, send.bytes) &&
      !holds(state_.member.output, send.bytes) &&
      !holds(state_.scratch(), send.bytes)) {
    broken(phase, "a send leaves the caller's memory");
  }
  if (send.peer == state_.rank) broken(phase, "a rank sends to itself");
  if (state_.network.contains({state_.rank, send.peer, phase, send.slot})) {
    broken(phase, "two sends share peer, phase and slot");
  }
}

void PlanRules::check_memory(const SimulatedPhase& running) const {
  const std::vector<Gather>& gathers = running.phase.gathers;
  for (const Gather& gather : gathers) {
    check_destination(running, gather);
    for (const Gather& other : gathers) check_other(running.number, gather, other);
  }
}

void PlanRules::check_destination(const SimulatedPhase& running,
                                  const Gather& gather) const {
  const std::size_t phase = running.number;
  const MemberCall& member = state_.member;
  if (gather.sources.empty()) broken(phase, "a gather has no source");
  if (!holds(member.output, gather.dst) && !holds(member.allocated, gather.dst) &&
      !holds(state_.scratch(), gather.dst) &&
      !(member.in_place && holds(member.input, gather.dst))) {
    broken(phase, "a destination leaves the caller's memory");
  }
  for (const auto& [number, send] : state_.unreleased) {
    const Source& first = gather.sources.front();
    const bool writes = gather.sources.size() > 1 || first.peer != kSelf ||
                        first.own.data() != gather.dst.data();
    const bool is_allowed =
        !writes || gather.overwrites_sent || (gather.follows_reads && number < phase);
    if (overlap(gather.dst, send->bytes) && !is_allowed) {
      broken(phase, "a destination overlaps a send of phase " + std::to_string(number));
    }
  }
}

// Checks the destination of a gather against another gather of the phase, or itself.
void PlanRules::check_other(std::size_t phase, const Gather& gather,
                            const Gather& other) const {
  const bool is_same = &gather == &other;
  if (!is_same && overlap(gather.dst, other.dst)) {
    broken(phase, "two destinations overlap");
  }
  for (const Source& source : other.sources) {
    if (source.peer != kSelf) continue;
    if (source.own.size() != other.dst.size()) {
      broken(phase, "a source in own memory has another length than its destination");
    }
    if (overlap(gather.dst, source.own) &&
        !(is_same && equal(gather.dst, source.own))) {
      broken(phase, "a source in own memory overlaps a destination in part");
    }
  }
}

void PlanRules::check_message(const SimulatedPhase& running, const Gather& gather,
                              const InFlight& message) const {
  if (message.payload.size() != gather.dst.size()) {
    broken(running.number, "a message of " + std::to_string(message.payload.size()) +
                               " bytes arrived for " +
                               std::to_string(gather.dst.size()));
  }
  if (message.is_received) broken(running.number, "a message has two receivers");
}

void PlanRules::check_overwrite(const SimulatedPhase& running, ConstBytes dst) const {
  for (const auto& [number, send] : state_.unreleased) {
    if (number < running.number && state_.is_read(number, *send, dst)) {
      broken(running.number, "a destination is overwritten that phase " +
                                 std::to_string(number) + " still sends");
    }
  }
  for (const SimulatedPhase& earlier : state_.running) {
    if (earlier.number >= running.number) break;
    for (std::size_t i = 0; i < earlier.progress.size(); ++i) {
      const Gather& gather = earlier.phase.gathers[i];
      const GatherProgress& progress = earlier.progress[i];
      bool is_used = overlap(gather.dst.subspan(progress.written), dst);
      for (const Source& source : gather.sources) {
        if (source.peer != kSelf) continue;
        is_used |= overlap(source.own.subspan(progress.combined), dst);
      }
      if (is_used) {
        broken(running.number, "a destination is overwritten that phase " +
                                   std::to_string(earlier.number) + " still uses");
      }
    }
  }
}

}  // namespace bluecomm::test
