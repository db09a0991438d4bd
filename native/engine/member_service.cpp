// Joins the pure parts (Membership, Watcher) to the links and the clock. The dispatcher
// calls poll() in each of its turns, and note_...() when a link ends or the control
// plane reports a death.
//
// A look, every 50 ms, asks each watched link for signs of life, shows the watchers of
// this rank that it runs, and passes evidence to Membership. While members decide,
// looks are 5 ms apart.
#include "engine/member_service.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>

#include "engine/envelope.h"
#include "request/message_prefix.h"

namespace bluecomm {
namespace {

constexpr WatchTiming kWatch;
constexpr MembershipTiming kDecide;
// A process ends soon after its links, so this rank looks often for this long.
constexpr std::chrono::seconds kHurry{1};

// The header of all messages between the members. One without a payload shows only that
// the sender runs.
struct MemberHeader : MessagePrefix {
  MemberHeader() { type = MessageType::kMember; }

  std::uint32_t epoch = 0;
};
static_assert(sizeof(MemberHeader) <= sizeof(Header::envelope));
static_assert(std::is_trivially_copyable_v<MemberHeader>);

Uid uid_of(const Peer& peer) {
  return hash_bytes(peer.machine + "/" + std::to_string(peer.pid),
                    static_cast<std::uint64_t>(peer.rank) + 1);
}

Epoch first_epoch(const Peers& peers) {
  Epoch epoch;
  for (int rank = 0; rank < peers.size(); ++rank) {
    const Peer& peer = peers.peer(rank);
    epoch.members.push_back({uid_of(peer), hash_bytes(peer.machine)});
  }
  return epoch;
}

std::string seconds_text(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", seconds);
  return text.data();
}

// Returns why the members go on without a rank, as the end of a sentence about it.
std::string describe(const std::string& cause, double silent_s) {
  if (cause == "dead") return " has ended";
  if (cause == "left") return " has left the job";
  if (cause == "stopped") return " has been stopped for " + seconds_text(silent_s);
  if (cause == "silent") return " has been silent for " + seconds_text(silent_s);
  if (cause == "broken") return " has lost its link to another rank";
  if (cause == "apart")
    return " cannot be reached, and this rank has gone on without it";
  return " does not answer the other ranks";
}

}  // namespace

MemberService::MemberService(const Peers& peers, std::uint64_t job, std::uint32_t epoch,
                             MemberNews& news, LookAtProcess look,
                             Membership::Minority minority)
    : peers_(peers),
      job_(job),
      epoch_(epoch),
      news_(news),
      rank_(peers.rank()),
      look_at_process_(std::move(look)),
      processes_(static_cast<std::size_t>(peers.size())),
      has_rank_(static_cast<std::size_t>(peers.size()), true),
      known_(static_cast<std::size_t>(peers.size())),
      membership_(first_epoch(peers), uid_of(peers.peer(peers.rank())), Clock::now(),
                  kDecide, minority),
      watcher_(Clock::now()),
      next_look_(Clock::now()),
      next_beat_(next_look_) {
  std::map<std::string, int> machines;
  for (int rank = 0; rank < peers.size(); ++rank) {
    const Peer& peer = peers.peer(rank);
    uids_.push_back(uid_of(peer));
    const int next = static_cast<int>(machines.size());
    machine_of_.push_back(machines.try_emplace(peer.machine, next).first->second);
    if (peers.is_here(rank) && !look_at_process_) {
      processes_[static_cast<std::size_t>(rank)] = ProcessWatch(peer.pid);
    }
  }
  if (!look_at_process_) {
    look_at_process_ = [this](int rank) {
      return processes_[static_cast<std::size_t>(rank)].state();
    };
  }
  choose_watched();
}

// --- Input ---------------------------------------------------------------------------

bool MemberService::take_message(int peer, std::unique_ptr<Incoming>& message) {
  MemberHeader header;
  std::memcpy(static_cast<void*>(&header), message->header().envelope.data(),
              sizeof header);
  const std::size_t nbytes = message->header().nbytes;
  if (header.job != job_ || header.epoch != epoch_ || nbytes > Channel::kMaxPost) {
    return false;
  }
  message->accept({});
  if (nbytes > 0) arriving_.push_back({peer, std::move(message), {}});
  return true;
}

bool MemberService::read_messages(Time now) {
  bool any = false;
  for (std::size_t i = 0; i < arriving_.size();) {
    Arriving& one = arriving_[i];
    const std::span<const std::byte> part = one.message->readable();
    one.bytes.insert(one.bytes.end(), part.begin(), part.end());
    one.message->consume(part.size());
    if (one.message->consumed() < one.message->header().nbytes) {
      ++i;
      continue;
    }
    const Arriving whole = std::move(one);
    arriving_.erase(arriving_.begin() + static_cast<std::ptrdiff_t>(i));
    any = true;
    if (const auto message = decode_membership_message(whole.bytes)) {
      membership_.receive(uid(whole.peer), *message, now);
      settle();
    }
  }
  return any;
}

void MemberService::note_end(int rank) {
  if (known(rank).has_left) return;
  known(rank).link_ended = true;
  watcher_.end(rank);
  const Time now = Clock::now();
  observe(rank, Evidence::kBroken, "broken", now);
  hurry_until_ = now + kHurry;
  next_look_ = std::min(next_look_, now + kDecide.gather);
  settle();
}

void MemberService::note_goodbye(int rank) {
  known(rank).has_left = true;
  watcher_.ignore(rank);
}

void MemberService::note_death(int rank) {
  watcher_.ignore(rank);
  const Time now = Clock::now();
  observe(rank, Evidence::kDead, known(rank).has_left ? "left" : "dead", now);
  next_look_ = std::min(next_look_, now + kDecide.gather);
  settle();
}

void MemberService::leave(std::string text) {
  if (why_excluded_) return;
  why_excluded_ = text;
  MemberChange change;
  change.kind = MemberChange::ChangeKind::kExcluded;
  change.text = std::move(text);
  news_.push(std::move(change));
}

void MemberService::observe(int rank, Evidence evidence, std::string_view cause,
                            Time now) {
  if (!is_other(rank)) return;
  Known& one = known(rank);
  // A broken link says less about a rank than the state of its process.
  if (one.cause.empty() || cause != "broken") one.cause = cause;
  membership_.observe(uid(rank), evidence, now);
}

// --- Turns ---------------------------------------------------------------------------

bool MemberService::poll(Time now) {
  if (arriving_.empty() && now < next_look_) return false;
  // Noted before the messages are read, because one may say that this rank is excluded,
  // and the reason names the absence.
  const bool was_absent = watcher_.note_turn(now);
  const bool any = read_messages(now);
  if (why_excluded_) {
    send_posts();  // others that were left behind ask this rank, too
    return any;
  }
  if (was_absent) membership_.ask(now);
  if (now >= next_look_) look(now);
  settle();
  send_posts();
  if (membership_.is_deciding() && (!is_held_ || now < hurry_until_)) {
    next_look_ = std::min(next_look_, now + kDecide.gather);
  }
  return any || !gone_.empty();
}

void MemberService::look(Time now) {
  listen(now);
  if (now >= next_beat_) {
    next_beat_ = now + kWatch.beat;
    beat();
  }
  accuse(now);
  if (membership_.is_deciding()) {
    for (int rank = 0; rank < peers_.size(); ++rank) {
      if (known(rank).has_left) observe(rank, Evidence::kDead, "left", now);
      if (known(rank).link_ended) observe(rank, Evidence::kBroken, "broken", now);
    }
    membership_.tick(now);
  }
  next_look_ = now + kWatch.look;
}

// Notes from which watched ranks something has arrived since the last look.
void MemberService::listen(Time now) {
  for (const int rank : watched_) {
    const Channel* const channel = peers_.channels()[static_cast<std::size_t>(rank)];
    const std::uint64_t signs = channel == nullptr ? 0 : channel->signs_of_life();
    Known& one = known(rank);
    if (!peers_.alive(rank) || std::exchange(one.signs, signs) == signs) continue;
    watcher_.hear(rank, now);
    membership_.hear(uid(rank), now);
    one.cause.clear();
    presume_silent(machine_of_[static_cast<std::size_t>(rank)], false, now);
    if (peers_.is_here(rank)) continue;
    // Asked only now, so that repeats during a cut do not count.
    const PathLosses losses = channel->path_losses();
    if (std::exchange(one.repeated, losses.repeated) != losses.repeated) {
      watcher_.note_losses(rank, losses.repeat_after, now);
    }
  }
}

void MemberService::beat() {
  for (const int rank : beats_to_) {
    Channel* const channel = peers_.channels()[static_cast<std::size_t>(rank)];
    if (channel == nullptr || !peers_.alive(rank)) continue;
    if (!channel->beat()) post(rank, {});
  }
}

void MemberService::accuse(Time now) {
  const auto findings = watcher_.look(now, next_look_, look_at_process_);
  for (const Watcher::Finding& finding : findings) {
    known(finding.rank).silent_s =
        std::chrono::duration<double>(finding.silence).count();
    switch (finding.evidence) {
      case Evidence::kDead:
        observe(finding.rank, Evidence::kDead, "dead", now);
        break;
      case Evidence::kStopped:
        observe(finding.rank, Evidence::kStopped, "stopped", now);
        break;
      case Evidence::kSilent:
      case Evidence::kBroken:
        observe(finding.rank, Evidence::kSilent, "silent", now);
        presume_silent(machine_of_[static_cast<std::size_t>(finding.rank)], true, now);
        break;
    }
  }
}

// A machine that is cut off falls silent as a whole. So the ranks of a machine that
// this rank does not watch count as silent while the rank that it watches there is.
void MemberService::presume_silent(int machine, bool silent, Time now) {
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (machine_of_[static_cast<std::size_t>(rank)] != machine || !is_other(rank) ||
        is_watched(rank) || (!silent && !known(rank).is_presumed)) {
      continue;
    }
    known(rank).is_presumed = silent;
    if (silent) {
      observe(rank, Evidence::kSilent, "silent", now);
    } else {
      known(rank).cause.clear();
      membership_.hear(uid(rank), now);
    }
  }
}

bool MemberService::is_watched(int rank) const {
  return std::binary_search(watched_.begin(), watched_.end(), rank);
}

// --- Output --------------------------------------------------------------------------

// Reports what Membership has decided since the last call.
void MemberService::settle() {
  if (why_excluded_) return;
  if (membership_.standing() == Membership::Standing::kExcluded) {
    const std::chrono::duration<double> absence = watcher_.absence();
    leave("rank " + std::to_string(rank_) + " is no member of this job any more: " +
          (absence.count() > 0
               ? "it was stopped for " + seconds_text(absence.count()) +
                     ", and the other ranks have gone on without it"
               : std::string("the other ranks could not reach it, and have gone on "
                             "without it")));
    return;
  }
  const Epoch& epoch = membership_.epoch();
  if (epoch.number != installed_) {
    installed_ = epoch.number;
    const bool has_split = std::exchange(lineage_, epoch.lineage) != epoch.lineage;
    if (has_split) {
      // It may not act for the primary until the program knows of the lineage.
      report_held(true);
      leave_behind();
    }
    for (int rank = 0; rank < peers_.size(); ++rank) {
      if (!is_gone(rank) && !epoch.rank_of(uid(rank))) report_gone(rank);
    }
    if (has_split) report_split();
    choose_watched();
    // The engine has no rounds of its own; see docs/membership.md.
    membership_.start_round(epoch.first_round);
  }
  report_held(membership_.standing() == Membership::Standing::kHeld);
}

void MemberService::report_held(bool is_held) {
  if (std::exchange(is_held_, is_held) == is_held) return;
  MemberChange change;
  change.kind =
      is_held ? MemberChange::ChangeKind::kHeld : MemberChange::ChangeKind::kReleased;
  news_.push(std::move(change));
}

// Notes that the ranks that are gone now have been left behind by this one.
void MemberService::leave_behind() {
  for (Known& one : known_) {
    if (one.cause != "dead" && one.cause != "left") one.cause = "apart";
  }
}

void MemberService::report_split() {
  MemberChange change;
  change.kind = MemberChange::ChangeKind::kSplit;
  // The same ranks may part again in a later generation.
  const std::uint64_t lineage = hash_bytes(std::to_string(epoch_), lineage_);
  std::array<char, 9> name{};
  std::snprintf(name.data(), name.size(), "%08x",
                static_cast<unsigned>(lineage ^ (lineage >> 32)));
  change.cause = name.data();
  news_.push(std::move(change));
}

void MemberService::report_gone(int rank) {
  has_rank_[static_cast<std::size_t>(rank)] = false;
  watcher_.ignore(rank);
  Known& one = known(rank);
  // Another member may have found it first.
  if (one.cause.empty() && one.has_left) one.cause = "left";
  MemberChange change;
  change.rank = rank;
  change.cause = one.cause;
  change.silent_s = one.silent_s;
  change.text = peers_.describe_process(rank) + describe(one.cause, one.silent_s);
  gone_.push_back(change);
  news_.push(std::move(change));
}

std::vector<MemberChange> MemberService::take_gone() {
  return std::exchange(gone_, {});
}

// Chooses who watches whom among the members. Each of them finds the same answer.
void MemberService::choose_watched() {
  for (const int rank : watched_) watcher_.ignore(rank);
  std::vector<int> machine_of = machine_of_;
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (is_gone(rank)) machine_of[static_cast<std::size_t>(rank)] = -1;
  }
  WatchPlan plan = plan_watch(rank_, machine_of);
  watched_ = std::move(plan.watched);
  beats_to_.clear();
  std::set_union(watched_.begin(), watched_.end(), plan.watchers.begin(),
                 plan.watchers.end(), std::back_inserter(beats_to_));
  for (const int rank : watched_) {
    if (known(rank).has_left) continue;
    watcher_.watch(rank, peers_.is_here(rank));
    if (known(rank).link_ended) watcher_.end(rank);
  }
}

void MemberService::send_posts() {
  for (const Membership::Post& sent : membership_.take_posts()) {
    const auto found = std::find(uids_.begin(), uids_.end(), sent.to);
    if (found != uids_.end()) {
      post(static_cast<int>(found - uids_.begin()), encode(sent.message));
    }
  }
}

void MemberService::post(int rank, std::span<const std::byte> payload) {
  Channel* const channel = peers_.channels()[static_cast<std::size_t>(rank)];
  if (channel == nullptr) return;
  MemberHeader message;
  message.job = job_;
  message.epoch = epoch_;
  Header header;
  header.nbytes = payload.size();
  std::memcpy(header.envelope.data(), &message, sizeof message);
  try {
    channel->post(header, payload);
  } catch (const std::exception&) {
    // The peer cannot be told now; Membership repeats what matters.
  }
}

}  // namespace bluecomm
