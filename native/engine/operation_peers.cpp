// The peers of an operation: which of them it waits for, which may wait for it, and how
// it goes on without one that is lost. The dispatcher calls these functions under the
// progress lock.
#include <algorithm>

#include "engine/operation.h"

namespace bluecomm {
namespace {

// By default transports copy messages of at most this size, so that their senders do
// not wait for the receivers.
constexpr std::size_t kCopiedBytes = 4096;

// Operations on at most this much memory take less time than it costs to wake a thread
// that competes with the program for the core.
constexpr std::size_t kShortBytes = 256 << 10;

}  // namespace

// --- Waiting -------------------------------------------------------------------------

BaseRequest::Awaited Operation::awaited() const {
  if (is_held_back_) return {{}, "its GPU", 0, 0};
  const Unfinished now = unfinished();
  Awaited awaited{
      {now.not_taken.begin(), now.not_taken.end()}, "", now.received, now.expected};
  for (const Missing& missing : now.missing) awaited.ranks.insert(missing.peer);
  return awaited;
}

Operation::Unfinished Operation::unfinished() const {
  Unfinished result;
  if (running_.empty()) return result;
  const RunningPhase& first = running_.front();
  for (const GatherState& gather : first.gathers) {
    gather.collect_missing(result.missing);
    for (const Source& source : gather.gather().sources) {
      if (source.peer != kSelf) result.expected += gather.gather().dst.size();
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
  const auto is_of_peer = [peer](const auto& one) { return one.peer == peer; };
  for (std::size_t p = next_phase_; p < plan_.phases.size(); ++p) {
    const Phase& phase = plan_.phases[p];
    if (std::any_of(phase.sends.begin(), phase.sends.end(), is_of_peer)) return true;
    for (const Gather& gather : phase.gathers) {
      const auto& sources = gather.sources;
      if (std::any_of(sources.begin(), sources.end(), is_of_peer)) return true;
    }
  }
  std::vector<Missing> missing;
  for (const RunningPhase& running : running_) {
    for (const GatherState& gather : running.gathers) gather.collect_missing(missing);
  }
  return std::any_of(missing.begin(), missing.end(), is_of_peer) ||
         sends_.has_for(peer);
}

bool Operation::awaits_header(int peer) const {
  if (state_ == State::kDone) return false;
  std::size_t awaited = 0;
  for (std::uint32_t p = 0; p < plan_.phases.size(); ++p) {
    const RunningPhase* const running = find_running(p);
    if (has_begun(p) && running == nullptr) continue;
    const std::vector<Gather>& gathers = plan_.phases[p].gathers;
    for (std::size_t g = 0; g < gathers.size(); ++g) {
      for (std::size_t s = 0; s < gathers[g].sources.size(); ++s) {
        if (gathers[g].sources[s].peer != peer) continue;
        const bool is_here = running != nullptr && running->gathers[g].has(s);
        if (!is_here) ++awaited;
      }
    }
  }
  for (const EarlyMessage& one : early_) {
    if (one.peer == peer) --awaited;
  }
  return awaited > 0;
}

int Operation::blocker() {
  if (running_.empty()) return -1;
  scratch_peers_.clear();
  for (const GatherState& gather : running_.front().gathers) {
    gather.collect_blockers(scratch_peers_);
  }
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

bool Operation::is_urgent() const {
  if (state_ == State::kDone) return false;
  if (state_ == State::kQueued || call_.input.size() > kShortBytes) return true;
  const std::vector<int> all = peers();
  const bool is_in_memory = std::all_of(all.begin(), all.end(), [this](int peer) {
    return channels_[static_cast<std::size_t>(peer)]->shares_memory();
  });
  return !is_in_memory && owes_peers();
}

// Returns whether other ranks may wait for something that this rank has yet to do.
bool Operation::owes_peers() const {
  if (next_phase_ < plan_.phases.size() || !sends_.all_released()) return true;
  // Where sizes are not known yet, the others' messages are probably copied, as its own
  // have been.
  const auto is_read_in_place = [](const GatherState& gather) {
    return !gather.done() && gather.gather().dst.size() > kCopiedBytes;
  };
  return std::any_of(running_.begin(), running_.end(), [&](const RunningPhase& one) {
    return std::any_of(one.gathers.begin(), one.gathers.end(), is_read_in_place);
  });
}

// --- Lost peers ----------------------------------------------------------------------

std::size_t Operation::drop_peer(int peer) {
  if (state_ == State::kDone) return 0;
  lost_ = peer;
  std::size_t replaced = 0;
  for (std::uint32_t p = next_phase_; p < plan_.phases.size(); ++p) {
    replaced += leave_out(p, peer);
  }
  sends_.drop(peer);
  for (RunningPhase& running : running_) {
    for (GatherState& gather : running.gathers) {
      const std::vector<Source>& sources = gather.gather().sources;
      for (std::size_t s = sources.size(); s-- > 0;) {
        if (sources[s].peer != peer) continue;
        const GatherState::Drop done = gather.drop(s);
        if (done == GatherState::Drop::kReplaced) ++replaced;
        if (done != GatherState::Drop::kInvalid) continue;
        keep_own(gather);
        break;
      }
    }
  }
  return replaced;
}

// Takes a peer out of a phase that has not begun, except for messages that have arrived
// from it.
std::size_t Operation::leave_out(std::uint32_t phase, int peer) {
  std::erase_if(plan_.phases[phase].sends,
                [peer](const Send& send) { return send.peer == peer; });
  const bool is_here =
      std::any_of(early_.begin(), early_.end(), [&](const EarlyMessage& one) {
        return one.peer == peer && one.envelope.phase == phase;
      });
  if (is_here) return 0;
  std::size_t left_out = 0;
  for (Gather& gather : plan_.phases[phase].gathers) {
    double weight = 0.0;
    left_out += std::erase_if(gather.sources, [&](const Source& source) {
      if (source.peer == peer) weight += source.weight;
      return source.peer == peer;
    });
    for (Source& source : gather.sources) {
      if (source.peer == kSelf) source.weight += weight;
    }
  }
  return left_out;
}

// Makes the result this rank's own tensor, after a lost peer has changed memory that
// was being read.
void Operation::keep_own(GatherState& gather) {
  if (gather.keep_own()) {
    has_begun_anew_ = true;
    return;
  }
  error_ = Status{Code::kPeerLost,
                  label() + ": rank " + std::to_string(lost_) +
                      " was lost while its tensor was read, and the operation in "
                      "place has overwritten this rank's own. Call the form that "
                      "returns a new tensor to keep it.",
                  lost_};
}

}  // namespace bluecomm
