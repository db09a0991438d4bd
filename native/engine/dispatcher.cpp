#include "engine/dispatcher.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/planner.h"

namespace bluecomm {
namespace {

// Messages about windows must not look like others of the same job.
constexpr std::uint64_t kWindowSeed = 0x77696E646F77;

}  // namespace

Dispatcher::Dispatcher(EngineConfig config,
                       std::vector<std::unique_ptr<Transport>> transports)
    : config_(std::move(config)),
      job_(hash_bytes(config_.job)),
      transports_(std::move(transports)),
      peers_(config_.rank, config_.size, config_.machine),
      account_(config_.size, config_.recorder),
      links_(peers_),
      window_account_(config_.size, config_.recorder),
      windows_(config_.rank, hash_bytes(config_.job, kWindowSeed + config_.epoch),
               links_, window_account_),
      counted_before_(static_cast<std::size_t>(config_.size)) {}

Dispatcher::~Dispatcher() {
  if (!transports_.empty() || !broken_transports_.empty()) free();
}

std::map<std::string, std::string> Dispatcher::offers() const {
  std::map<std::string, std::string> offers;
  for (const auto& transport : transports_) {
    offers.emplace(transport->name(), transport->offer());
  }
  return offers;
}

void Dispatcher::connect(std::vector<Peer> peers) {
  peers_.connect(std::move(peers), transports_);
}

void Dispatcher::add_group(Group group) {
  const std::uint64_t id = group.id;
  for (const int rank : group.ranks) {
    if (rank != config_.rank && !peers_.is_peer(rank)) {
      throw std::invalid_argument("rank " + std::to_string(rank) + " is not in 0 .. " +
                                  std::to_string(config_.size - 1));
    }
  }
  if (!groups_.emplace(id, std::make_shared<const Group>(std::move(group))).second) {
    throw std::invalid_argument("group " + std::to_string(id) + " exists already");
  }
}

std::shared_ptr<const Group> Dispatcher::group(std::uint64_t id) const {
  const auto found = groups_.find(id);
  if (found == groups_.end()) {
    throw std::invalid_argument("there is no group " + std::to_string(id));
  }
  return found->second;
}

Dispatcher::Entry& Dispatcher::entry(RequestId id) {
  return const_cast<Entry&>(std::as_const(*this).entry(id));
}

const Dispatcher::Entry& Dispatcher::entry(RequestId id) const {
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    throw std::invalid_argument("handle " + std::to_string(id) +
                                " is unknown: it was released, or never given out");
  }
  return found->second;
}

// --- Submitting ----------------------------------------------------------------------

RequestId Dispatcher::submit(Request request) {
  const RequestId id = last_id_ + 1;
  request.allocate = [this, id](std::size_t nbytes,
                                std::span<const std::int64_t> rows) {
    Result& result = entry(id).result;
    result = config_.allocate(nbytes);
    result.rows.assign(rows.begin(), rows.end());
    return result.bytes;
  };
  Plan plan = make_plan(request, config_.tuning);
  const std::uint32_t sequence =
      matching_.next_sequence(request.group->id, name_hash(request));
  const Envelope call =
      make_envelope(request, plan.algorithm, job_, config_.epoch, sequence);
  auto operation =
      std::make_shared<Operation>(id, std::move(request), std::move(plan), call);
  last_id_ = id;
  now_ = operation->started();
  entries_[id].operation = operation;
  active_.push_back(operation);
  const bool must_wait = matching_.add(operation);

  try {
    for (Unmatched& one : matching_.take(call.key)) {
      match(one.peer, one.envelope, std::move(one.message));
    }
  } catch (const std::exception& error) {
    fail_thrown(*operation, error);
  }
  if (!must_wait && operation->state() == Operation::State::kQueued) start(*operation);
  account_.submitted(entry(id).notes, *operation);
  return id;
}

void Dispatcher::start(Operation& operation) {
  const Key key = operation.key();
  if (closing_) {
    fail_operation(operation,
                   {Code::kClosed, operation.label() + ": the engine is closed", -1});
    return;
  }
  if (!broken_.empty()) {
    fail_operation(operation,
                   {Code::kInternal, operation.label() + ": " + broken_, -1});
    return;
  }
  if (const auto late = late_failures_.extract(key.group)) {
    fail_operation(operation, late.mapped());
    return;
  }
  if (const std::optional<Status> abort = matching_.abort_of(key)) {
    fail_operation(operation, *abort);
    return;
  }
  try {
    operation.start(peers_.channels());
  } catch (const std::exception& error) {
    fail_thrown(operation, error);
    return;
  }
  advance(operation);
}

// --- Receiving -----------------------------------------------------------------------

void Dispatcher::on_message(int peer, std::unique_ptr<Incoming> message) {
  arrived_.push_back({peer, std::move(message)});
}

bool Dispatcher::read_arrivals() {
  std::vector<Arrived> arrived = std::exchange(arrived_, {});
  for (Arrived& one : arrived) {
    if (windows_.take_message(one.peer, one.message)) continue;
    const std::optional<Envelope> envelope = read_envelope(one.message->header());
    if (!envelope || envelope->job != job_ || envelope->key.epoch != config_.epoch) {
      peers_.lose(one.peer,
                  "it sent a message that this version of bluecomm, or this job, does "
                  "not know");
    } else if (envelope->type == MessageType::kAbort) {
      one.message->accept({});
      aborts_.push_back({one.peer, *envelope, std::move(one.message), ""});
      read_aborts();
    } else {
      match(one.peer, *envelope, std::move(one.message));
    }
  }
  if (read_aborts()) return true;
  return !arrived.empty();
}

void Dispatcher::match(int peer, const Envelope& envelope,
                       std::unique_ptr<Incoming> message) {
  // Headers of a peer come in order, and it has ended its earlier calls of the name
  // (which it tells in an ABORT if they failed).
  Operation* const earlier = matching_.find_earlier(envelope.key);
  if (earlier != nullptr && earlier->awaits_header(peer) &&
      !has_abort(peer, earlier->key())) {
    fail_forgotten(*earlier, peer);
  }
  Operation* const operation = matching_.find(envelope.key);
  if (operation != nullptr) {
    if (!agree(operation->call(), envelope)) {
      fail_mismatch(*operation, peer, envelope);
    } else if (operation->deliver(peer, envelope, message) ==
               Operation::Delivery::kUnexpected) {
      fail_unexpected(peer, envelope);
    } else if (envelope.phase == 0) {
      account_.header(entry(operation->id()).notes, *operation, peer, now_);
    }
    return;
  }
  switch (matching_.standing(envelope.key)) {
    case Matching::Standing::kFuture:
      matching_.keep({peer, envelope, std::move(message)});
      return;
    case Matching::Standing::kUnfinished:
    case Matching::Standing::kPast:
      if (!matching_.has_failed(envelope.key)) fail_unexpected(peer, envelope);
      return;
  }
}

void Dispatcher::on_lost(int peer, Status status) {
  peers_.lose(peer, std::move(status.text));
}

void Dispatcher::on_goodbye(int peer) { peers_.finish(peer); }

// --- Moving on -----------------------------------------------------------------------

bool Dispatcher::poll() {
  bool changed = false;
  now_ = Clock::now();
  for_transports([&](Transport& one) {
    if (one.poll(*this)) changed = true;
  });
  if (!leaving_.empty()) look_at_leaving();
  if (read_arrivals()) changed = true;
  for (std::size_t i = 0; i < active_.size();) {
    const std::shared_ptr<Operation> operation = active_[i];
    if (advance(*operation)) changed = true;
    if (i < active_.size() && active_[i] == operation) ++i;
  }
  if (windows_.poll(now_, peers_.gone())) changed = true;
  if (fail_expired(now_)) changed = true;
  if (!peers_.gone().empty() && fail_gone(now_)) changed = true;
  return changed;
}

bool Dispatcher::advance(Operation& operation) {
  const Clock::time_point begin = account_.records() ? Clock::now() : now_;
  bool changed = false;
  try {
    changed = operation.advance(kBudget);
  } catch (const std::exception& error) {
    fail_thrown(operation, error);
    return true;
  }
  if (changed && account_.records()) account_.combined(operation, begin);
  account_.progress(entry(operation.id()).notes, operation, changed, begin);
  if (operation.error()) {
    fail_operation(operation, *operation.error());
    return true;
  }
  if (operation.state() == Operation::State::kDone) {
    end(operation);
    return true;
  }
  return changed;
}

// Takes an operation that is done out of all lists but entries_.
void Dispatcher::end(Operation& operation) {
  account_.ended(entry(operation.id()).notes, operation);
  ++completions_;
  const auto active = std::find_if(
      active_.begin(), active_.end(),
      [&](const std::shared_ptr<Operation>& one) { return one.get() == &operation; });
  const std::shared_ptr<Operation> keep = *active;
  active_.erase(active);
  if (operation.holds_memory()) {
    leaving_.add(keep);
  } else {
    finished_.push_back(operation.id());
  }
  if (const std::shared_ptr<Operation> next = matching_.remove(operation)) start(*next);
}

Clock::time_point Dispatcher::next_timer() const {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& transport : transports_) {
    next = std::min(next, transport->next_timer());
  }
  for (const auto& operation : active_) next = std::min(next, operation->deadline());
  next = std::min(next, windows_.next_timer());
  if (!outstanding()) return next;
  const Clock::time_point now = Clock::now();
  for (const int rank : peers_.gone()) {
    const Clock::time_point grace = peers_.grace_until(rank);
    next = std::min(next, grace > now ? grace : now + Peers::kFarewell);
  }
  return next;
}

// --- Requests ------------------------------------------------------------------------

std::shared_ptr<const Operation> Dispatcher::operation(RequestId id) const {
  return entry(id).operation;
}

bool Dispatcher::has_result(RequestId id) const {
  const Entry& found = entry(id);
  return found.operation->succeeded() && found.result.owner;
}

const Result& Dispatcher::result(RequestId id) const {
  if (!has_result(id)) {
    throw std::invalid_argument("handle " + std::to_string(id) +
                                " has no result of its own");
  }
  return entry(id).result;
}

bool Dispatcher::release(RequestId id) {
  Entry& released = entry(id);
  if (released.operation->state() != Operation::State::kDone) {
    throw std::invalid_argument("handle " + std::to_string(id) +
                                " cannot be released before its operation has ended");
  }
  const bool is_free = !leaving_.keep(*released.operation, std::move(released.result));
  entries_.erase(id);
  const auto listed = std::find(finished_.rbegin(), finished_.rend(), id);
  if (listed != finished_.rend()) finished_.erase(std::next(listed).base());
  return is_free;
}

void Dispatcher::look_at_leaving() {
  const std::vector<RequestId> over = leaving_.take_free();
  finished_.insert(finished_.end(), over.begin(), over.end());
}

std::vector<RequestId> Dispatcher::take_finished() {
  return std::exchange(finished_, {});
}

void Dispatcher::extend_deadline(RequestId id, Clock::duration time) {
  Operation& operation = *entry(id).operation;
  operation.set_deadline(std::max(operation.deadline(), Clock::now() + time));
}

void Dispatcher::put_off_deadlines(Clock::duration time) {
  for (const auto& [id, entry] : entries_) {
    Operation& operation = *entry.operation;
    operation.set_deadline(operation.deadline() + time);
  }
  windows_.put_off_deadlines(time);
}

// --- Closing -------------------------------------------------------------------------

void Dispatcher::close() {
  closing_ = true;
  fail_all(Code::kClosed,
           "cut short, because rank " + std::to_string(config_.rank) + " shut down",
           config_.rank);
  windows_.close("cut short, because rank " + std::to_string(config_.rank) +
                 " shut down");
  for_transports([](Transport& one) { one.close(); });
}

void Dispatcher::release_backends() {
  for_transports([](Transport& one) { one.release_backend(); });
}

void Dispatcher::free() {
  for (const auto& operation : std::exchange(active_, {})) {
    operation->finish({Code::kClosed, operation->label() + ": the engine ended", -1});
    leaving_.add(operation);
  }
  matching_ = Matching();
  arrived_.clear();
  aborts_.clear();
  windows_.free();
  peers_.disconnect();
  transports_.clear();
  broken_transports_.clear();
  look_at_leaving();
  for (const auto& [id, entry] : entries_) {
    leaving_.keep(*entry.operation, entry.result);
  }
  leaving_.never_free();
}

void Dispatcher::abandon_after_fork() noexcept {
  for (const auto* const list : {&transports_, &broken_transports_}) {
    for (const auto& transport : *list) transport->abandon_after_fork();
  }
}

bool Dispatcher::closed() const {
  return std::all_of(transports_.begin(), transports_.end(),
                     [](const auto& transport) { return transport->closed(); });
}

}  // namespace bluecomm
