#include "tests/membership/schedule.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "engine/membership/primary.h"

namespace bluecomm::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kBeat = 100ms;
constexpr auto kTickEvery = 50ms;
constexpr auto kSilence = 400ms;  // until a silent link is an accusation
constexpr auto kBreaks = 2000ms;  // until it counts as broken
constexpr auto kFaultsEnd = 1500ms;
constexpr auto kAlone = 5s;
constexpr auto kEndsWithin = 60s;  // of quiet
// Members split soon, because all faults end soon.
constexpr MembershipTiming kSplitsSoon{.split = 300ms};
constexpr int kMessagesOfQuiet = 20'000;

std::string text_of(const MemberSet& set) {
  std::string text = "{";
  for (int rank = set.lowest(); rank != -1; rank = set.lowest(rank + 1)) {
    text += (text.size() > 1 ? " " : "") + std::to_string(rank);
  }
  return text + "}";
}

std::string text_of(const MembershipMessage& message) {
  static const char* const names[] = {"?",   "SUSPECT", "GATHER", "REPORT", "PREPARE",
                                      "ACK", "NACK",    "COMMIT", "CLAIM"};
  std::ostringstream text;
  text << names[static_cast<int>(message.action)] << " after " << message.number
       << " ballot " << message.ballot.counter << "." << message.ballot.rank;
  if (message.other.is_set()) {
    text << " other " << message.other.counter << "." << message.other.rank;
  }
  if (!message.proposal.survivors.empty()) {
    text << " survivors " << text_of(message.proposal.survivors) << " from round "
         << message.proposal.first_round;
  }
  const Accusations& said = message.accusations;
  if (!said.silent.empty()) text << " silent " << text_of(said.silent);
  if (!said.stopped.empty()) text << " stopped " << text_of(said.stopped);
  if (!said.broken.empty()) text << " broken " << text_of(said.broken);
  if (!said.dead.empty()) text << " dead " << text_of(said.dead);
  return text.str();
}

}  // namespace

std::uint64_t Dice::next() {
  std::uint64_t value = (state_ += 0x9E3779B97F4A7C15ULL);
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

// --- What a schedule does ------------------------------------------------------------

Schedule::FaultMix Schedule::draw_mix(Dice& dice) {
  FaultMix mix;
  mix.size = 2 + dice.below(kMost - 1);
  mix.machines = 1 + dice.below(mix.size);
  mix.only_late = dice.one_in(5);
  mix.crashes = dice.below(mix.size);
  mix.stops = dice.below(4);
  mix.double_one_in = dice.one_in(2) ? 10 : 0;
  mix.crash_sending_one_in = dice.one_in(2) ? 4 : 0;
  mix.longest_delay = std::chrono::milliseconds(dice.one_in(2) ? 5 : 60);
  if (mix.only_late) {
    mix.longest_stop = 200ms;
    return mix;
  }
  mix.deaths_show = !dice.one_in(4);
  mix.longest_stop = std::chrono::milliseconds(dice.one_in(2) ? 400 : 4000);
  mix.longest_delay *= dice.one_in(3) ? 10 : 1;
  mix.lose_one_in = dice.one_in(2) ? 3 + dice.below(20) : 0;
  mix.accuse_one_in = dice.one_in(3) ? 10 : 0;
  mix.cuts = dice.below(4);
  // With one broken link of three, or two of six, some member still reaches a majority.
  if (dice.one_in(3)) mix.broken_pairs = mix.size < 4 ? 1 : 1 + dice.below(2);
  return mix;
}

Schedule::Schedule(std::uint64_t seed, bool with_trace, Minority minority)
    : seed_(seed),
      with_trace_(with_trace),
      minority_(minority),
      dice_(seed),
      mix_(draw_mix(dice_)),
      quiet_at_(now_ + kFaultsEnd) {
  Epoch first;
  for (int node = 0; node < mix_.size; ++node) {
    first.members.push_back({1000 + static_cast<Uid>(node),
                             static_cast<std::uint64_t>(node % mix_.machines)});
  }
  nodes_.resize(at(mix_.size));
  for (int node = 0; node < mix_.size; ++node) {
    nodes_[at(node)].membership = std::make_unique<Membership>(
        first, first.members[at(node)].uid, now_, kSplitsSoon, minority_);
    nodes_[at(node)].installed = {first.id()};
    nodes_[at(node)].lineages = {first.lineage};
    put(now_ + Span(dice_.below(100'000)), Change::kBeat, node);
  }
  schedule_faults();
}

void Schedule::schedule_faults() {
  const auto some_time = [&] { return now_ + Span(dice_.below(1'400'000)); };
  // Half of the crashes come together.
  const Time together = some_time();
  for (int i = 0; i < mix_.crashes; ++i) {
    const Time when = dice_.one_in(2) ? together : some_time();
    put(when, Change::kCrash, dice_.below(mix_.size));
  }
  for (int i = 0; i < mix_.stops; ++i) {
    put(some_time(), Change::kStop, dice_.below(mix_.size));
  }
  for (int i = 0; i < mix_.cuts; ++i) put(some_time(), Change::kCut);
  for (int i = 0; i < mix_.broken_pairs; ++i) {
    const int a = dice_.below(mix_.size);
    const int b = dice_.below(mix_.size);
    if (a != b) broken_[at(a)][at(b)] = broken_[at(b)][at(a)] = true;
  }
  put(quiet_at_, Change::kQuiet);
}

void Schedule::put(Time when, Change change, int node, int other, int message) {
  queue_.push({when, order_++, change, node, other, message});
}

void Schedule::run() {
  while (!queue_.empty()) {
    const Scheduled next = queue_.top();
    queue_.pop();
    now_ = std::max(now_, next.at);
    handle(next);
    if (is_quiet_ && is_settled()) break;
    if (is_quiet_ && now_ > quiet_since_ + kEndsWithin) break;
  }
  check_end();
}

void Schedule::handle(const Scheduled& next) {
  Node& node = nodes_[at(next.node)];
  switch (next.change) {
    case Change::kDeliver:
      return deliver(next);
    case Change::kBeat:
      if (node.alive) put(now_ + kBeat, Change::kBeat, next.node);
      if (is_running(next.node)) beat(next.node);
      return;
    case Change::kTick:
      node.ticks = false;
      if (!is_running(next.node)) return;
      node.membership->tick(now_);
      return settle(next.node);
    case Change::kCrash:
      return crash(next.node);
    case Change::kStop: {
      if (is_quiet_ || !is_running(next.node)) return;
      node.stopped = true;
      node.stopped_since = now_;
      note(describe(next.node) + " stops");
      const auto limit = static_cast<int>(mix_.longest_stop.count());
      return put(now_ + Span(dice_.below(limit)), Change::kThaw, next.node);
    }
    case Change::kThaw:
      return thaw(next.node);
    case Change::kCut:
      return cut();
    case Change::kQuiet:
      return quiet();
  }
}

void Schedule::crash(int index) {
  Node& node = nodes_[at(index)];
  if (!node.alive || living() == 1 || is_quiet_) return;
  node.alive = false;
  node.stopped = false;
  for (const Scheduled& one : std::exchange(node.held_back, {})) {
    if (one.message != -1) --in_flight_;
  }
  node.died_at = now_;
  node.shows = mix_.only_late || dice_.one_in(2);
  note(describe(index) + " dies");
  if (!node.shows) return;
  // The others learn of it at different times.
  for (int other = 0; other < mix_.size; ++other) {
    if (other != index)
      put(now_ + Span(dice_.below(20'000)), Change::kDeliver, other, index);
  }
}

void Schedule::thaw(int index) {
  Node& node = nodes_[at(index)];
  if (!node.alive || !node.stopped) return;
  node.stopped = false;
  note(describe(index) + " runs again");
  const std::vector<Scheduled> held_back = std::exchange(node.held_back, {});
  for (const Scheduled& one : held_back) deliver(one);
  if (!node.ticks) put(now_, Change::kTick, index);
  node.ticks = true;
}

void Schedule::cut() {
  if (is_quiet_) return;
  const auto until = now_ + Span(dice_.below(3'000'000));
  // Either two sides, or one direction between two members.
  const bool splits = dice_.one_in(2);
  const int side = dice_.below(1 << mix_.size);
  const int a = dice_.below(mix_.size);
  const int b = dice_.below(mix_.size);
  for (int from = 0; from < mix_.size; ++from) {
    for (int to = 0; to < mix_.size; ++to) {
      const bool hit =
          splits ? ((side >> from) & 1) != ((side >> to) & 1) : from == a && to == b;
      if (!hit || from == to) continue;
      if (!is_cut(from, to)) cut_since_[at(from)][at(to)] = now_;
      cut_until_[at(from)][at(to)] = until;
      note("cut from " + describe(from) + " to " + describe(to));
    }
  }
}

void Schedule::quiet() {
  is_quiet_ = true;
  quiet_since_ = now_;
  note("quiet from here");
  for (auto& row : cut_until_) row.fill({});
  for (int index = 0; index < mix_.size; ++index) {
    if (mix_.deaths_show) nodes_[at(index)].shows = true;
    thaw(index);
  }
}

// --- What members notice and do ------------------------------------------------------

void Schedule::deliver(const Scheduled& now) {
  Node& node = nodes_[at(now.node)];
  if (now.message != -1 && !node.stopped) --in_flight_;
  if (!node.alive) return;
  if (node.stopped) return node.held_back.push_back(now);
  if (now.message == -1) {
    node.membership->observe(1000 + static_cast<Uid>(now.other), Evidence::kDead, now_);
  } else {
    const Letter& letter = letters_[at(now.message)];
    if (with_trace_) {
      note(describe(now.node) + " <- " + describe(index_of(letter.from)) + " " +
           text_of(letter.message));
    }
    node.membership->receive(letter.from, letter.message, now_);
  }
  settle(now.node);
}

void Schedule::beat(int index) {
  run_rounds(index);
  for (const Member& member : nodes_[at(index)].membership->epoch().members) {
    if (index_of(member.uid) != index) judge(index, index_of(member.uid));
  }
  settle(index);
}

// Gives a member the evidence that its machine and its links have about another one.
void Schedule::judge(int index, int other) {
  Membership& membership = *nodes_[at(index)].membership;
  const Node& them = nodes_[at(other)];
  const Uid uid = 1000 + static_cast<Uid>(other);
  const bool is_machine_mate = index % mix_.machines == other % mix_.machines;
  const bool reaches = !is_cut(other, index) && !broken_[at(other)][at(index)];
  if (broken_[at(other)][at(index)]) membership.observe(uid, Evidence::kBroken, now_);
  if (!them.alive) {
    if (them.shows && (is_quiet_ || now_ > them.died_at + 200ms)) {
      membership.observe(uid, Evidence::kDead, now_);
    } else if (reaches && now_ > them.died_at + 20ms) {
      membership.observe(uid, Evidence::kBroken, now_);
    } else if (now_ > them.died_at + kSilence) {
      membership.observe(uid, Evidence::kSilent, now_);
    }
    return;
  }
  if (them.stopped && now_ > them.stopped_since + 300ms) {
    const bool seen = is_machine_mate || now_ > them.stopped_since + kSilence;
    if (seen) {
      membership.observe(uid, is_machine_mate ? Evidence::kStopped : Evidence::kSilent,
                         now_);
    }
    return;
  }
  if (is_cut(other, index)) {
    const auto since = now_ - cut_since_[at(other)][at(index)];
    if (since > kSilence) {
      membership.observe(uid, since > kBreaks ? Evidence::kBroken : Evidence::kSilent,
                         now_);
    }
    return;
  }
  if (!is_quiet_ && mix_.accuse_one_in > 0 && dice_.one_in(mix_.accuse_one_in)) {
    membership.observe(uid, dice_.one_in(2) ? Evidence::kSilent : Evidence::kStopped,
                       now_);
    return;
  }
  // Members send beats to those of their own epoch only.
  const bool sends_beats =
      them.membership->standing() != Membership::Standing::kExcluded &&
      them.membership->epoch().rank_of(1000 + static_cast<Uid>(index)).has_value();
  if (!reaches || them.stopped) return;
  if (sends_beats) {
    membership.hear(uid, now_);
  } else {
    membership.observe(uid, Evidence::kSilent, now_);
  }
}

void Schedule::run_rounds(int index) {
  Node& node = nodes_[at(index)];
  for (int count = dice_.below(12); count > 0; --count) {
    const std::uint64_t round = node.rounds.size();
    if (!node.membership->start_round(round)) return;
    node.rounds.push_back(node.membership->epoch_of(round).id());
  }
}

void Schedule::settle(int index) {
  Node& node = nodes_[at(index)];
  check_install(index);
  if (minority_ == Minority::kSplits) check_lineages(index);
  for (Membership::Post& post : node.membership->take_posts()) {
    const bool decides = post.message.action == MembershipAction::kPrepare ||
                         post.message.action == MembershipAction::kCommit;
    if (decides && !is_quiet_ && dice_.one_in(mix_.crash_sending_one_in)) {
      // In the middle of what it sends.
      if (dice_.one_in(2)) {
        crash(index);
      } else {
        handle({now_, 0, Change::kStop, index, 0, -1});
      }
      if (!node.alive) return;
    }
    const int to = index_of(post.to);
    if (is_quiet_) ++quiet_messages_;
    ++messages_;
    if (is_cut(index, to) || broken_[at(index)][at(to)]) continue;
    if (!is_quiet_ && dice_.one_in(mix_.lose_one_in)) continue;
    letters_.push_back({1000 + static_cast<Uid>(index), std::move(post.message)});
    for (int copies = dice_.one_in(mix_.double_one_in) ? 2 : 1; copies > 0; --copies) {
      const bool is_late = !is_quiet_ && dice_.one_in(8);
      const auto longest = is_late ? mix_.longest_delay : Span(3'000);
      const auto delay = Span(100 + dice_.below(static_cast<int>(longest.count())));
      ++in_flight_;
      put(now_ + delay, Change::kDeliver, to, index,
          static_cast<int>(letters_.size()) - 1);
    }
  }
  if (node.alive && !node.ticks && node.membership->is_deciding()) {
    node.ticks = true;
    put(now_ + kTickEvery, Change::kTick, index);
  }
}

// --- Rules ---------------------------------------------------------------------------

void Schedule::check_install(int index) {
  Node& node = nodes_[at(index)];
  const Membership& membership = *node.membership;
  const Epoch& epoch = membership.epoch();
  if (epoch.number + 1 == node.installed.size()) return;
  if (epoch.number != node.installed.size())
    fail(describe(index) + " skipped an epoch");
  ++epochs_;
  const std::uint64_t id = epoch.id();
  node.installed.push_back(id);
  node.lineages.push_back(epoch.lineage);
  note(describe(index) + " installs epoch " + std::to_string(epoch.number) + " of " +
       std::to_string(epoch.size()) + " from round " +
       std::to_string(epoch.first_round));
  if (!epoch.rank_of(1000 + static_cast<Uid>(index))) {
    fail(describe(index) + " installs an epoch without itself");
  }
  if (epoch.lineage == Epoch::kPrimary && node.rounds.size() > epoch.first_round) {
    fail(describe(index) + " ran round " + std::to_string(node.rounds.size() - 1) +
         " before it installed the epoch of that round");
  }
  for (int other = 0; other < mix_.size; ++other) {
    const Node& them = nodes_[at(other)];
    if (!them.alive || them.installed.size() <= epoch.number) continue;
    if (them.lineages[epoch.number] != epoch.lineage) continue;
    if (them.installed[epoch.number] != id) {
      fail(describe(index) + " and " + describe(other) + " have different epochs " +
           std::to_string(epoch.number));
    }
  }
}

// Two members of different lineages never count on each other: then neither takes the
// other's messages. A member that is held may not know yet that it has been left.
void Schedule::check_lineages(int index) const {
  const Membership& one = *nodes_[at(index)].membership;
  for (int other = 0; other < mix_.size; ++other) {
    const Membership& two = *nodes_[at(other)].membership;
    if (!nodes_[at(other)].alive || one.epoch().lineage == two.epoch().lineage)
      continue;
    const auto is_left = [](const Membership& member) {
      return member.standing() == Membership::Standing::kHeld;
    };
    if (is_left(one) || is_left(two)) continue;
    if (one.epoch().rank_of(1000 + static_cast<Uid>(other)) &&
        two.epoch().rank_of(1000 + static_cast<Uid>(index))) {
      fail(describe(index) + " and " + describe(other) +
           " count on each other in different lineages");
    }
  }
}

// Returns whether all living members of a member's epoch have this epoch.
bool Schedule::shares_epoch(const Membership& membership) const {
  const Epoch& epoch = membership.epoch();
  return std::all_of(epoch.members.begin(), epoch.members.end(),
                     [&](const Member& member) {
                       const Node& them = nodes_[at(index_of(member.uid))];
                       return !them.alive || them.membership->epoch() == epoch;
                     });
}

// Returns whether each living member goes on, with the primary or without, and counts
// on nobody who goes on otherwise.
bool Schedule::has_split_for_good() const {
  if (in_flight_ > 0 || now_ < quiet_since_ + 3 * kBeat) return false;
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return !node.alive ||
           (node.membership->standing() == Membership::Standing::kMember &&
            !node.membership->is_deciding() && shares_epoch(*node.membership));
  });
}

bool Schedule::is_settled() const {
  if (minority_ == Minority::kSplits) return has_split_for_good();
  if (in_flight_ > 0 || now_ < quiet_since_ + 3 * kBeat) return false;
  for (int index = 0; index < mix_.size; ++index) {
    const Node& node = nodes_[at(index)];
    const bool may_wait = now_ > quiet_since_ + kAlone && !must_end(index);
    if (node.alive && node.membership->is_deciding() && !may_wait) return false;
  }
  return true;
}

void Schedule::check_end() {
  for (int index = 0; index < mix_.size; ++index) {
    const Membership& membership = *nodes_[at(index)].membership;
    if (!nodes_[at(index)].alive) continue;
    note(describe(index) + " ends in epoch " +
         std::to_string(membership.epoch().number) + ", standing " +
         std::to_string(static_cast<int>(membership.standing())) +
         (membership.is_deciding() ? ", deciding" : "") + ", " +
         std::to_string(in_flight_) + " in flight");
  }
  if (minority_ == Minority::kSplits) {
    for (int index = 0; index < mix_.size; ++index) {
      if (!nodes_[at(index)].alive) continue;
      check_lineages(index);
      for (int other = 0; other < index; ++other) check_rounds(index, other);
    }
    if (!is_settled()) fail("no end");
    if (quiet_messages_ > kMessagesOfQuiet) fail("too many messages");
    return;
  }
  // The newest epoch that a living process has installed.
  int newest = -1;
  for (int index = 0; index < mix_.size; ++index) {
    const Node& node = nodes_[at(index)];
    if (!node.alive) continue;
    if (newest == -1 || node.installed.size() > nodes_[at(newest)].installed.size()) {
      newest = index;
    }
    for (int other = 0; other < index; ++other) check_rounds(index, other);
  }
  const Epoch epoch = nodes_[at(newest)].membership->epoch();
  MemberSet present(epoch.size());
  for (int rank = 0; rank < epoch.size(); ++rank) {
    const Node& node = nodes_[at(index_of(epoch.members[at(rank)].uid))];
    const bool is_excluded =
        node.membership->standing() == Membership::Standing::kExcluded;
    if (node.alive && !is_excluded) present.insert(rank);
  }
  if (!can_decide(epoch, present)) return;  // they wait for more, as they should
  if (!is_settled()) fail("no end");
  if (quiet_messages_ > kMessagesOfQuiet) fail("too many messages");
  for (int index = 0; index < mix_.size; ++index) {
    const Node& node = nodes_[at(index)];
    const bool is_member =
        node.membership->standing() != Membership::Standing::kExcluded;
    if (!is_member && node.alive && mix_.only_late) {
      fail(describe(index) + " was only late");
    }
    if (is_member && must_end(index) && node.membership->epoch() != epoch) {
      fail(describe(index) + " has another epoch than " + describe(newest));
    }
  }
  if (present.count() != epoch.size()) fail("the last epoch has members that are gone");
  for (const Member& a : epoch.members) {
    for (const Member& b : epoch.members) {
      if (broken_[at(index_of(a.uid))][at(index_of(b.uid))]) {
        fail("the last epoch has members without a link");
      }
    }
  }
}

void Schedule::check_rounds(int a, int b) const {
  const Node& one = nodes_[at(a)];
  const Node& two = nodes_[at(b)];
  for (const Node* node : {&one, &two}) {
    if (!node->alive) return;
    if (node->membership->standing() != Membership::Standing::kMember) return;
  }
  if (one.membership->epoch() != two.membership->epoch()) return;
  // Members of a lineage begin it in rounds of their own.
  if (one.membership->epoch().lineage != Epoch::kPrimary) return;
  for (std::size_t round = 0; round < std::min(one.rounds.size(), two.rounds.size());
       ++round) {
    if (one.rounds[round] != two.rounds[round]) {
      fail(describe(a) + " and " + describe(b) + " ran round " + std::to_string(round) +
           " in different epochs");
    }
  }
}

bool Schedule::is_cut(int from, int to) const {
  return now_ < cut_until_[at(from)][at(to)];
}

// Returns whether some member has links to enough others to decide.
bool Schedule::can_decide(const Epoch& epoch, const MemberSet& present) const {
  MemberSet dead(epoch.size());
  for (int rank = 0; rank < epoch.size(); ++rank) {
    const Node& node = nodes_[at(index_of(epoch.members[at(rank)].uid))];
    if (!node.alive && node.shows) dead.insert(rank);
  }
  for (int rank = present.lowest(); rank != -1; rank = present.lowest(rank + 1)) {
    MemberSet reached = present;
    for (int other = 0; other < epoch.size(); ++other) {
      if (broken_[at(index_of(epoch.members[at(rank)].uid))]
                 [at(index_of(epoch.members[at(other)].uid))]) {
        reached.erase(other);
      }
    }
    if (is_primary(reached, dead)) return true;
  }
  return false;
}

// Returns whether a member of an old epoch can still learn what became of it: from
// another member that knows, or by a decision.
bool Schedule::must_end(int index) const {
  const Node& node = nodes_[at(index)];
  if (!node.alive) return false;
  const Epoch& epoch = node.membership->epoch();
  MemberSet present(epoch.size());
  for (int rank = 0; rank < epoch.size(); ++rank) {
    const int other = index_of(epoch.members[at(rank)].uid);
    if (!nodes_[at(other)].alive) continue;
    const Membership& them = *nodes_[at(other)].membership;
    const bool is_here = them.standing() != Membership::Standing::kExcluded &&
                         them.epoch().number == epoch.number;
    if (is_here) present.insert(rank);
    if (!is_here && !broken_[at(index)][at(other)]) return true;
  }
  return can_decide(epoch, present);
}

int Schedule::living() const {
  return static_cast<int>(std::count_if(nodes_.begin(), nodes_.end(),
                                        [](const Node& node) { return node.alive; }));
}

std::string Schedule::describe(int node) const { return "n" + std::to_string(node); }

void Schedule::note(const std::string& text) {
  if (!with_trace_) return;
  const auto at_us = std::chrono::duration_cast<Span>(now_.time_since_epoch()) - 1s;
  trace_ += std::to_string(at_us.count() / 1000) + "." +
            std::to_string(at_us.count() / 100 % 10) + " ms: " + text + "\n";
}

void Schedule::fail(const std::string& text) const {
  throw ScheduleBroken("seed " + std::to_string(seed_) + ", " +
                       std::to_string(mix_.size) + " members: " + text);
}

}  // namespace bluecomm::test
