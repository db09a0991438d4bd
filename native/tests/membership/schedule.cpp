// Draws the faults of a schedule, carries the members' messages, and shows each member
// what it would notice; schedule_rules.cpp has the rules.
#include "tests/membership/schedule.h"

#include <algorithm>
#include <utility>

#include "tests/membership/message_text.h"

namespace bluecomm::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kTickEvery = 50ms;
constexpr auto kSilence = 400ms;  // until a silent link is an accusation
constexpr auto kBreaks = 2000ms;  // until it counts as broken
constexpr auto kFaultsEnd = 1500ms;
constexpr auto kEndsWithin = 60s;  // of quiet
// Members split soon, because all faults end soon.
constexpr MembershipTiming kSplitsSoon{.split = 300ms};

}  // namespace

// --- What a schedule does ------------------------------------------------------------

Schedule::FaultMix Schedule::draw_mix(Dice& dice) {
  FaultMix mix;
  mix.size = 2 + dice.below(FaultyLinks::kMost - 1);
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
    if (a != b) links_.break_between(a, b);
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
      links_.cut(from, to, now_, until);
      note("cut from " + describe(from) + " to " + describe(to));
    }
  }
}

void Schedule::quiet() {
  is_quiet_ = true;
  quiet_since_ = now_;
  note("quiet from here");
  links_.heal_cuts();
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
  const bool reaches = !is_cut(other, index) && !links_.is_broken(other, index);
  if (links_.is_broken(other, index)) membership.observe(uid, Evidence::kBroken, now_);
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
    const auto silent_for = links_.cut_for(other, index, now_);
    if (silent_for > kSilence) {
      membership.observe(
          uid, silent_for > kBreaks ? Evidence::kBroken : Evidence::kSilent, now_);
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
    if (is_cut(index, to) || links_.is_broken(index, to)) continue;
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
