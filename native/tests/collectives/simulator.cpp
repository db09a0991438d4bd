// The simulator of plans; see simulator.h. It runs in the test's thread: one PlanRunner
// per rank does one step at a time, in an order drawn from the seed.
#include "tests/collectives/simulator.h"

#include <algorithm>
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

  bool done() const { return phase_ == member_.plan.phases.size(); }

  // Does one thing that is possible now. Returns false if nothing is.
  bool step() {
    if (done()) return false;
    if (!is_started_) {
      start_phase();
      return true;
    }
    if (!is_bound_ && !bind()) return false;
    std::vector<std::size_t> order(phase().gathers.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (std::size_t i : order) {
      if (combine_chunk(i) || write_back(i)) return true;
    }
    return end_phase();
  }

  std::string state() const {
    return "rank " + std::to_string(rank_) + (done() ? " is done" : " is in phase ") +
           (done() ? "" : std::to_string(phase_));
  }

 private:
  // The state of a gather in the running phase.
  struct GatherProgress {
    std::vector<InFlight*> messages;  // one for each source; null for own memory
    bool is_accepted = false;
    std::size_t combined = 0;
    std::size_t written = 0;         // less than `combined` while waiting for releases
    std::vector<std::byte> scratch;  // with overwrites_sent
  };

  Phase& phase() { return member_.plan.phases[phase_]; }

  ConstBytes scratch() const {
    return {member_.plan.scratch.get(), member_.plan.scratch_nbytes};
  }

  [[noreturn]] void broken(const std::string& rule) const {
    throw RuleBroken(rule + " (rank " + std::to_string(rank_) + ", phase " +
                     std::to_string(phase_) + ")");
  }

  std::size_t chunk_length(std::size_t rest) {
    const std::size_t blocks = (rest + kCut - 1) / kCut;
    std::uniform_int_distribution<std::size_t> draw(1, blocks);
    return std::min(rest, draw(random_) * kCut);
  }

  void start_phase() {
    is_started_ = true;
    if (phase().prepare) phase().prepare();
    for (const Send& send : phase().sends) {
      post(send);
      unreleased_.emplace_back(phase_, &send);
    }
    progress_.assign(phase().gathers.size(), {});
    is_bound_ = !phase().bind;
    if (is_bound_) check_and_poison();
  }

  void post(const Send& send) {
    if (!holds(member_.input, send.bytes) && !holds(member_.output, send.bytes) &&
        !holds(scratch(), send.bytes)) {
      broken("a send leaves the caller's memory");
    }
    if (send.peer == rank_) broken("a rank sends to itself");
    const MessageKey key{rank_, send.peer, phase_, send.slot};
    const auto [place, is_new] = network_.try_emplace(key);
    if (!is_new) broken("two sends share peer, phase and slot");
    InFlight& message = place->second;
    message.scale = send.scale;
    message.first_dim = send.first_dim;
    message.payload = send.bytes;
    if (send.bytes.size() <= kMaxEager && random_() % 2 == 0) {
      message.eager.assign(send.bytes.begin(), send.bytes.end());
      message.payload = message.eager;
      message.released = message.eager.size();
    }
  }

  // Returns whether every awaited header has arrived, and so the gathers have memory.
  bool bind() {
    std::vector<Arrival> arrivals;
    for (const Gather& gather : phase().gathers) {
      for (const Source& source : gather.sources) {
        if (source.peer == kSelf) continue;
        const auto found = network_.find({source.peer, rank_, phase_, source.slot});
        if (found == network_.end()) return false;
        const InFlight& message = found->second;
        arrivals.push_back(
            {source.peer, source.slot, message.payload.size(), message.first_dim});
      }
    }
    phase().bind(arrivals, phase().gathers);
    is_bound_ = true;
    check_and_poison();
    return true;
  }

  // Checks the rules for one rank's memory within a phase, and poisons destinations.
  void check_and_poison() {
    std::vector<Gather>& gathers = phase().gathers;
    for (std::size_t i = 0; i < gathers.size(); ++i) {
      const Gather& gather = gathers[i];
      if (gather.sources.empty()) broken("a gather has no source");
      if (!holds(member_.output, gather.dst) && !holds(member_.allocated, gather.dst) &&
          !holds(scratch(), gather.dst) &&
          !(member_.in_place && holds(member_.input, gather.dst))) {
        broken("a destination leaves the caller's memory");
      }
      for (const auto& [number, send] : unreleased_) {
        const Source& first = gather.sources.front();
        const bool writes = gather.sources.size() > 1 || first.peer != kSelf ||
                            first.own.data() != gather.dst.data();
        if (overlap(gather.dst, send->bytes) && writes && !gather.overwrites_sent) {
          broken("a destination overlaps a send of phase " + std::to_string(number));
        }
      }
      for (std::size_t j = 0; j < gathers.size(); ++j) {
        if (i != j && overlap(gather.dst, gathers[j].dst)) {
          broken("two destinations overlap");
        }
        for (const Source& source : gathers[j].sources) {
          if (source.peer != kSelf) continue;
          if (source.own.size() != gathers[j].dst.size()) {
            broken("a source in own memory has another length than its destination");
          }
          if (overlap(gather.dst, source.own) &&
              !(i == j && equal(gather.dst, source.own))) {
            broken("a source in own memory overlaps a destination in part");
          }
        }
      }
    }
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
  bool accept(const Gather& gather, GatherProgress& progress) {
    if (progress.is_accepted) return true;
    std::vector<InFlight*> messages;
    for (const Source& source : gather.sources) {
      if (source.peer == kSelf) {
        messages.push_back(nullptr);
        continue;
      }
      const auto found = network_.find({source.peer, rank_, phase_, source.slot});
      if (found == network_.end()) return false;
      messages.push_back(&found->second);
    }
    for (InFlight* message : messages) {
      if (message == nullptr) continue;
      if (message->payload.size() != gather.dst.size()) {
        broken("a message of " + std::to_string(message->payload.size()) +
               " bytes arrived for " + std::to_string(gather.dst.size()));
      }
      if (std::exchange(message->is_received, true)) {
        broken("a message has two receivers");
      }
    }
    progress.messages = std::move(messages);
    progress.is_accepted = true;
    if (gather.overwrites_sent) progress.scratch.resize(gather.dst.size());
    return true;
  }

  bool combine_chunk(std::size_t index) {
    const Gather& gather = phase().gathers[index];
    GatherProgress& progress = progress_[index];
    if (!accept(gather, progress)) return false;
    const std::size_t start = progress.combined;
    if (start == gather.dst.size()) return false;
    const std::size_t length = chunk_length(gather.dst.size() - start);

    std::vector<Term> terms;
    for (std::size_t s = 0; s < gather.sources.size(); ++s) {
      const Source& source = gather.sources[s];
      const InFlight* message = progress.messages[s];
      const ConstBytes bytes = message == nullptr ? source.own : message->payload;
      const double scale = message == nullptr ? 1.0 : message->scale;
      terms.push_back({bytes.data() + start, source.weight * scale});
    }
    const std::span<std::byte> whole =
        gather.overwrites_sent ? std::span(progress.scratch) : gather.dst;
    const std::span<std::byte> dst = whole.subspan(start, length);
    switch (gather.combine) {
      case Combine::kCopy:
        if (terms.size() != 1) broken("a copy has several sources");
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
    if (!gather.overwrites_sent) progress.written = progress.combined;
    for (InFlight* message : progress.messages) {
      if (message == nullptr) continue;
      message->released = std::max(message->released, progress.combined);
    }
    return true;
  }

  // Copies bytes from scratch memory back to ranges that peers no longer read.
  bool write_back(std::size_t index) {
    const Gather& gather = phase().gathers[index];
    GatherProgress& progress = progress_[index];
    if (progress.written == progress.combined) return false;
    const std::size_t length = chunk_length(progress.combined - progress.written);
    const std::span<std::byte> dst = gather.dst.subspan(progress.written, length);
    const std::byte* const dst_end = dst.data() + dst.size();
    for (const auto& [number, send] : unreleased_) {
      if (!overlap(send->bytes, dst)) continue;
      const std::byte* const send_end = send->bytes.data() + send->bytes.size();
      const auto needed_end =
          static_cast<std::size_t>(std::min(dst_end, send_end) - send->bytes.data());
      if (released(number, *send) < needed_end) return false;
    }
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
    for (std::size_t i = 0; i < progress_.size(); ++i) {
      const GatherProgress& progress = progress_[i];
      if (!progress.is_accepted || progress.written < phase().gathers[i].dst.size()) {
        return false;
      }
    }
    std::erase_if(unreleased_, [&](const auto& sent) {
      const auto& [number, send] = sent;
      return released(number, *send) == send->bytes.size();
    });
    const bool is_last = phase_ + 1 == member_.plan.phases.size();
    for (const auto& [number, send] : unreleased_) {
      if (is_last || !send->lingers) return false;
    }
    ++phase_;
    is_started_ = false;
    return true;
  }

  MemberCall& member_;
  DType dtype_;
  Network& network_;
  std::mt19937& random_;
  int rank_ = 0;
  std::size_t phase_ = 0;
  bool is_started_ = false;
  bool is_bound_ = false;
  std::vector<GatherProgress> progress_;
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
