// The simulator of plans; see simulator.h. It runs in the test's thread: one PlanRunner
// per rank does one step at a time, in an order drawn from the seed.
#include "tests/collectives/simulator.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <tuple>
#include <utility>

#include "kernels/combine.h"

namespace bluecomm::test {
namespace {

constexpr std::size_t kMaxEager = 4096;
constexpr std::size_t kCut = 64;  // chunks are multiples of this, as in the transports
constexpr std::byte kPoison{0xff};

using ConstBytes = std::span<const std::byte>;

bool overlap(ConstBytes a, ConstBytes b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() &&
         b.data() < a.data() + a.size();
}

bool holds(ConstBytes whole, ConstBytes part) {
  return part.empty() || (part.data() >= whole.data() &&
                          part.data() + part.size() <= whole.data() + whole.size());
}

bool equal(ConstBytes a, ConstBytes b) {
  return a.data() == b.data() && a.size() == b.size();
}

// Sender, receiver, phase, slot.
using MessageKey = std::tuple<int, int, std::size_t, std::uint32_t>;

struct InFlight {
  ConstBytes payload;            // the sender's memory, or `eager`
  std::vector<std::byte> eager;  // a copy
  std::size_t final_nbytes = 0;  // bytes that the sender has computed
  std::size_t released = 0;      // bytes that the sender may overwrite
  double scale = 1.0;
  std::int64_t first_dim = 0;
  bool is_received = false;
};

using Network = std::map<MessageKey, InFlight>;

// Executes the plan of one rank.
class PlanRunner {
 public:
  PlanRunner(MemberCall& member, DType dtype, Network& network, std::mt19937& random)
      : member_(member), dtype_(dtype), network_(network), random_(random) {
    const Group& group = *member.call.group;
    rank_ = group.ranks[group.me];
  }

  bool done() const {
    return running_.empty() && next_phase_ == member_.plan.phases.size();
  }

  // Does one thing that is possible now. Returns false if nothing is.
  bool step() {
    if (may_start_phase() && (running_.empty() || random_() % 4 == 0)) {
      start_phase();
      return true;
    }
    supply();
    std::vector<GatherTurn> works;
    for (SimulatedPhase& running : running_) {
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

  std::string state() const {
    return "rank " + std::to_string(rank_) + (done() ? " is done" : " is in phase ") +
           (done() ? "" : std::to_string(next_phase_ - running_.size()));
  }

 private:
  // The state of a gather in a running phase.
  struct GatherProgress {
    std::vector<InFlight*> messages;  // one for each source; null for own memory
    bool is_accepted = false;
    std::size_t combined = 0;
    std::size_t written = 0;         // less than `combined` while waiting for releases
    std::vector<std::byte> scratch;  // with overwrites_sent
  };

  struct SimulatedPhase {
    std::size_t number;
    Phase& phase;
    bool is_bound;
    std::vector<GatherProgress> progress;
  };

  // A gather of a running phase.
  struct GatherTurn {
    SimulatedPhase* running;
    std::size_t gather;
  };

  ConstBytes scratch() const {
    return {member_.plan.scratch.get(), member_.plan.scratch_nbytes};
  }

  [[noreturn]] void broken(std::size_t phase, const std::string& rule) const {
    throw RuleBroken(rule + " (rank " + std::to_string(rank_) + ", phase " +
                     std::to_string(phase) + ")");
  }

  std::size_t chunk_length(std::size_t rest) {
    const std::size_t blocks = (rest + kCut - 1) / kCut;
    std::uniform_int_distribution<std::size_t> draw(1, blocks);
    return std::min(rest, draw(random_) * kCut);
  }

  bool may_start_phase() {
    if (next_phase_ == member_.plan.phases.size()) return false;
    if (running_.empty()) return true;
    return member_.plan.phases[next_phase_].overlaps && running_.back().is_bound;
  }

  void start_phase() {
    const std::size_t number = next_phase_++;
    Phase& phase = member_.plan.phases[number];
    if (phase.overlaps && (phase.prepare || phase.bind)) {
      broken(number, "a phase that overlaps has `prepare` or `bind`");
    }
    if (phase.prepare) phase.prepare();
    for (const Send& send : phase.sends) {
      unreleased_.emplace_back(number, &send);
      post(number, send);
    }
    running_.push_back({number, phase, !phase.bind,
                        std::vector<GatherProgress>(phase.gathers.size())});
    if (running_.back().is_bound) check_and_poison(running_.back());
  }

  // Returns how much of the beginning of `bytes` the phases before `phase` have
  // computed.
  std::size_t ready_prefix(ConstBytes bytes, std::size_t phase) const {
    std::size_t ready = bytes.size();
    for (const SimulatedPhase& running : running_) {
      if (running.number >= phase) break;
      for (std::size_t i = 0; i < running.progress.size(); ++i) {
        const ConstBytes rest =
            running.phase.gathers[i].dst.subspan(running.progress[i].written);
        if (!overlap(bytes.first(ready), rest)) continue;
        ready = static_cast<std::size_t>(std::max(rest.data(), bytes.data()) -
                                         bytes.data());
      }
    }
    return ready;
  }

  // Shows the peers what has been computed of the sends.
  void supply() {
    for (const auto& [number, send] : unreleased_) {
      if (!member_.plan.phases[number].overlaps) continue;
      InFlight& message = network_.at({rank_, send->peer, number, send->slot});
      message.final_nbytes =
          std::max(message.final_nbytes, ready_prefix(send->bytes, number));
    }
  }

  void post(std::size_t phase, const Send& send) {
    if (!holds(member_.input, send.bytes) && !holds(member_.output, send.bytes) &&
        !holds(scratch(), send.bytes)) {
      broken(phase, "a send leaves the caller's memory");
    }
    if (send.peer == rank_) broken(phase, "a rank sends to itself");
    const MessageKey key{rank_, send.peer, phase, send.slot};
    const auto [place, is_new] = network_.try_emplace(key);
    if (!is_new) broken(phase, "two sends share peer, phase and slot");
    InFlight& message = place->second;
    message.scale = send.scale;
    message.first_dim = send.first_dim;
    message.payload = send.bytes;
    message.final_nbytes = ready_prefix(send.bytes, phase);
    const bool is_final = message.final_nbytes == send.bytes.size();
    if (is_final && send.bytes.size() <= kMaxEager && random_() % 2 == 0) {
      message.eager.assign(send.bytes.begin(), send.bytes.end());
      message.payload = message.eager;
      message.released = message.eager.size();
    }
  }

  // Returns whether every awaited header has arrived, and so the gathers have memory.
  bool bind(SimulatedPhase& running) {
    std::vector<Arrival> arrivals;
    for (const Gather& gather : running.phase.gathers) {
      for (const Source& source : gather.sources) {
        if (source.peer == kSelf) continue;
        const InFlight* const message = find(source, running.number);
        if (message == nullptr) return false;
        arrivals.push_back(
            {source.peer, source.slot, message->payload.size(), message->first_dim});
      }
    }
    running.phase.bind(arrivals, running.phase.gathers);
    running.is_bound = true;
    check_and_poison(running);
    return true;
  }

  InFlight* find(const Source& source, std::size_t phase) {
    const auto found = network_.find({source.peer, rank_, phase, source.slot});
    return found == network_.end() ? nullptr : &found->second;
  }

  // Checks the rules for one rank's memory within a phase, and poisons destinations.
  void check_and_poison(const SimulatedPhase& running) {
    const std::size_t phase = running.number;
    std::vector<Gather>& gathers = running.phase.gathers;
    for (std::size_t i = 0; i < gathers.size(); ++i) {
      const Gather& gather = gathers[i];
      if (gather.sources.empty()) broken(phase, "a gather has no source");
      if (!holds(member_.output, gather.dst) && !holds(member_.allocated, gather.dst) &&
          !holds(scratch(), gather.dst) &&
          !(member_.in_place && holds(member_.input, gather.dst))) {
        broken(phase, "a destination leaves the caller's memory");
      }
      for (const auto& [number, send] : unreleased_) {
        const Source& first = gather.sources.front();
        const bool writes = gather.sources.size() > 1 || first.peer != kSelf ||
                            first.own.data() != gather.dst.data();
        const bool is_allowed = !writes || gather.overwrites_sent ||
                                (gather.follows_reads && number < phase);
        if (overlap(gather.dst, send->bytes) && !is_allowed) {
          broken(phase,
                 "a destination overlaps a send of phase " + std::to_string(number));
        }
      }
      for (std::size_t j = 0; j < gathers.size(); ++j) {
        if (i != j && overlap(gather.dst, gathers[j].dst)) {
          broken(phase, "two destinations overlap");
        }
        for (const Source& source : gathers[j].sources) {
          if (source.peer != kSelf) continue;
          if (source.own.size() != gathers[j].dst.size()) {
            broken(phase,
                   "a source in own memory has another length than its destination");
          }
          if (overlap(gather.dst, source.own) &&
              !(i == j && equal(gather.dst, source.own))) {
            broken(phase, "a source in own memory overlaps a destination in part");
          }
        }
      }
    }
    if (running.phase.overlaps) return;  // earlier phases still use the memory
    for (const Gather& gather : gathers) {
      const bool is_read = std::any_of(
          gather.sources.begin(), gather.sources.end(),
          [&](const Source& source) { return overlap(source.own, gather.dst); });
      if (!is_read && !gather.overwrites_sent) {
        std::fill(gather.dst.begin(), gather.dst.end(), kPoison);
      }
    }
  }

  // Returns whether the headers of all sources have arrived.
  bool accept(const SimulatedPhase& running, const Gather& gather,
              GatherProgress& progress) {
    if (progress.is_accepted) return true;
    std::vector<InFlight*> messages;
    for (const Source& source : gather.sources) {
      messages.push_back(source.peer == kSelf ? nullptr : find(source, running.number));
      if (source.peer != kSelf && messages.back() == nullptr) return false;
    }
    for (InFlight* message : messages) {
      if (message == nullptr) continue;
      if (message->payload.size() != gather.dst.size()) {
        broken(running.number,
               "a message of " + std::to_string(message->payload.size()) +
                   " bytes arrived for " + std::to_string(gather.dst.size()));
      }
      if (std::exchange(message->is_received, true)) {
        broken(running.number, "a message has two receivers");
      }
    }
    progress.messages = std::move(messages);
    progress.is_accepted = true;
    if (uses_scratch(gather)) progress.scratch.resize(gather.dst.size());
    return true;
  }

  // The transport may receive a copy into its destination if nobody reads that any
  // more.
  static bool uses_scratch(const Gather& gather) {
    const bool is_received_in_place =
        gather.combine == Combine::kCopy && gather.follows_reads;
    return gather.overwrites_sent && !is_received_in_place;
  }

  // Returns how many bytes can be combined from `start` on.
  std::size_t available(const SimulatedPhase& running, const Gather& gather,
                        const GatherProgress& progress) const {
    const std::size_t start = progress.combined;
    std::size_t end = gather.dst.size();
    for (std::size_t s = 0; s < gather.sources.size(); ++s) {
      const InFlight* const message = progress.messages[s];
      end = std::min(end, message != nullptr
                              ? message->final_nbytes
                              : ready_prefix(gather.sources[s].own, running.number));
    }
    if (end < gather.dst.size()) end -= end % kCut;
    return end - std::min(start, end);
  }

  // Checks that the earlier phases need the memory `dst` no more.
  void check_overwrite(const SimulatedPhase& running, ConstBytes dst) const {
    for (const auto& [number, send] : unreleased_) {
      if (number < running.number && is_read(number, *send, dst)) {
        broken(running.number, "a destination is overwritten that phase " +
                                   std::to_string(number) + " still sends");
      }
    }
    for (const SimulatedPhase& earlier : running_) {
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

  // Returns whether a peer may still read the part of `send` that lies in `dst`.
  bool is_read(std::size_t phase, const Send& send, ConstBytes dst) const {
    if (!overlap(send.bytes, dst)) return false;
    const std::byte* const end =
        std::min(dst.data() + dst.size(), send.bytes.data() + send.bytes.size());
    return released(phase, send) < static_cast<std::size_t>(end - send.bytes.data());
  }

  bool combine_chunk(SimulatedPhase& running, std::size_t index) {
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
    check_overwrite(running, dst);
    switch (gather.combine) {
      case Combine::kCopy:
        if (terms.size() != 1) broken(running.number, "a copy has several sources");
        std::copy_n(terms[0].data, length, dst.data());
        break;
      case Combine::kWeighted:
        combine_weighted(dst, terms, gather.post_scale, dtype_);
        break;
      case Combine::kReduce:
        combine_reduce(dst, terms, gather.op, gather.post_scale, dtype_);
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
  bool write_back(SimulatedPhase& running, std::size_t index) {
    const Gather& gather = running.phase.gathers[index];
    GatherProgress& progress = running.progress[index];
    if (progress.written == progress.combined) return false;
    const std::size_t length = chunk_length(progress.combined - progress.written);
    const std::span<std::byte> dst = gather.dst.subspan(progress.written, length);
    for (const auto& [number, send] : unreleased_) {
      if (number <= running.number && is_read(number, *send, dst)) return false;
    }
    check_overwrite(running, dst);
    std::copy_n(
        progress.scratch.begin() + static_cast<std::ptrdiff_t>(progress.written),
        length, dst.begin());
    progress.written += length;
    return true;
  }

  std::size_t released(std::size_t phase, const Send& send) const {
    return network_.at({rank_, send.peer, phase, send.slot}).released;
  }

  bool end_phase() {
    if (running_.empty()) return false;
    const SimulatedPhase& running = running_.front();
    for (std::size_t i = 0; i < running.progress.size(); ++i) {
      const GatherProgress& progress = running.progress[i];
      const bool is_done = progress.is_accepted &&
                           progress.written == running.phase.gathers[i].dst.size();
      if (!is_done) return false;
    }
    std::erase_if(unreleased_, [&](const auto& sent) {
      const auto& [number, send] = sent;
      return released(number, *send) == send->bytes.size();
    });
    const bool is_last = running.number + 1 == member_.plan.phases.size();
    for (const auto& [number, send] : unreleased_) {
      if (number <= running.number && (is_last || !send->lingers)) return false;
    }
    running_.pop_front();
    return true;
  }

  MemberCall& member_;
  DType dtype_;
  Network& network_;
  std::mt19937& random_;
  int rank_ = 0;
  std::size_t next_phase_ = 0;
  std::deque<SimulatedPhase> running_;
  std::vector<std::pair<std::size_t, const Send*>> unreleased_;  // with their phases
};

void finish(MemberCall& member) {
  member.input_after = member.input;
  member.result = !member.call.output.empty() ? std::vector(member.call.output.begin(),
                                                            member.call.output.end())
                                              : member.allocated;
  for (const std::span<std::byte> output : member.call.outputs) {
    member.result.insert(member.result.end(), output.begin(), output.end());
  }
  for (auto* memory : {&member.input, &member.output, &member.allocated}) {
    std::fill(memory->begin(), memory->end(), kPoison);
  }
}

}  // namespace

SimulatedWorld::SimulatedWorld(const std::vector<int>& machine_of)
    : calls_(machine_of.size()), done_(machine_of.size()) {
  Group group;
  group.id = 1;
  group.machine_of = machine_of;
  for (int i = 0; i < size(); ++i) group.ranks.push_back(100 + 3 * i);
  for (int i = 0; i < size(); ++i) {
    group.me = i;
    calls_[i].call.group = std::make_shared<Group>(group);
  }
}

void SimulatedWorld::set_tensor(int member, DType dtype,
                                std::vector<std::int64_t> shape,
                                std::size_t output_nbytes, bool in_place) {
  MemberCall& mine = calls_[member];
  std::size_t nbytes = item_size(dtype);
  for (std::int64_t dimension : shape) nbytes *= static_cast<std::size_t>(dimension);
  mine.input.assign(nbytes, std::byte{0});
  mine.in_place = in_place;
  mine.output.assign(in_place ? 0 : output_nbytes, kPoison);
  mine.call.dtype = dtype;
  mine.call.shape = std::move(shape);
  mine.call.input = mine.input;
  mine.call.output = in_place ? std::span(mine.input) : std::span(mine.output);
  mine.call.allocate = [&mine](std::size_t length, std::span<const std::int64_t> rows) {
    mine.allocated.assign(length, kPoison);
    mine.rows.assign(rows.begin(), rows.end());
    return std::span(mine.allocated);
  };
}

void SimulatedWorld::plan(const Tuning& tuning) {
  for (MemberCall& member : calls_) member.plan = make_plan(member.call, tuning);
}

void SimulatedWorld::run(unsigned seed, int late,
                         const std::function<void()>& before_late) {
  std::mt19937 random(seed);
  Network network;
  std::vector<PlanRunner> runners;
  for (MemberCall& member : calls_)
    runners.emplace_back(member, member.call.dtype, network, random);
  std::fill(done_.begin(), done_.end(), false);

  const auto finish_if_done = [&](int member) {
    if (done_[member] || !runners[member].done()) return;
    done_[member] = true;
    finish(calls_[member]);
  };
  bool is_late = late >= 0;
  std::vector<int> order(calls_.size());
  for (int i = 0; i < size(); ++i) order[i] = i;
  while (true) {
    // One randomly chosen rank does one thing.
    std::shuffle(order.begin(), order.end(), random);
    const bool any = std::any_of(order.begin(), order.end(), [&](int member) {
      if (is_late && member == late) return false;
      const bool did = runners[member].step();
      finish_if_done(member);
      return did;
    });
    if (any) continue;
    if (!is_late) break;
    before_late();
    is_late = false;
  }

  std::string states;
  for (int i = 0; i < size(); ++i) {
    if (!done_[i]) states += runners[i].state() + "; ";
  }
  if (!states.empty()) throw RuleBroken("deadlock: " + states);
  for (const auto& [key, message] : network) {
    if (message.is_received) continue;
    throw RuleBroken("the message from rank " + std::to_string(std::get<0>(key)) +
                     " to " + std::to_string(std::get<1>(key)) + " in phase " +
                     std::to_string(std::get<2>(key)) + " has no receiver");
  }
}

std::vector<int> one_machine(int members) {
  return std::vector<int>(static_cast<std::size_t>(members), 0);
}

std::vector<int> machines_of_one(int members) {
  return machines_of(std::vector<int>(static_cast<std::size_t>(members), 1));
}

std::vector<int> machines_of(const std::vector<int>& sizes) {
  std::vector<int> machine_of;
  for (std::size_t machine = 0; machine < sizes.size(); ++machine) {
    machine_of.insert(machine_of.end(), static_cast<std::size_t>(sizes[machine]),
                      static_cast<int>(machine));
  }
  return machine_of;
}

}  // namespace bluecomm::test
