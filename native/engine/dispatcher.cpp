// Makes and ends the dispatcher, and answers questions about its groups and results.
// The engine calls these functions under its progress lock. The other files have
//
// dispatcher_operations.cpp  an operation, from its call to its end
// dispatcher_turns.cpp       the turns in which messages arrive and requests move on
// dispatcher_failures.cpp    failures, deadlines and groups that are removed
// dispatcher_losses.cpp      lost ranks
// dispatcher_refusals.cpp    calls that the program has refused to make
// dispatcher_joining.cpp     ranks that have joined
// dispatcher_reports.cpp     what is pending, and statistics
#include "engine/dispatcher.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace bluecomm {

Dispatcher::Dispatcher(EngineConfig config,
                       std::vector<std::unique_ptr<Transport>> transports)
    : config_(std::move(config)),
      job_(hash_bytes(config_.job)),
      transports_(std::move(transports)),
      peers_(config_.rank, config_.size, config_.machine),
      joining_(config_.size),
      stats_(config_.size, config_.recorder),
      request_peers_(peers_),
      windows_(config_.rank, job_, config_.epoch, request_peers_, requests_, stats_,
               survival_of_windows()),
      points_(config_.rank, job_, config_.epoch, request_peers_, groups_.removed(),
              requests_, stats_,
              [this](int peer, Status failure) {
                add_late_failure(" on " + peers_.describe_rank(peer),
                                 std::move(failure));
              }),
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
  if (config_.survives_losses && config_.size > 1) {
    members_.emplace(peers_, job_, config_.epoch, member_news_, config_.look_at_process,
                     config_.minority);
  }
}

void Dispatcher::add_group(Group group) {
  for (const int rank : group.ranks) {
    if (rank != config_.rank && !peers_.is_peer(rank)) {
      throw std::invalid_argument("rank " + std::to_string(rank) + " is not in 0 .. " +
                                  std::to_string(config_.size - 1));
    }
  }
  groups_.add(std::move(group));
}

std::shared_ptr<const Group> Dispatcher::group(std::uint64_t id) const {
  std::shared_ptr<const Group> found = groups_.find(id);
  if (!found) throw std::invalid_argument("there is no group " + std::to_string(id));
  return found;
}

Operation& Dispatcher::operation(RequestId id) const {
  BaseRequest& request = *requests_.at(id);
  if (!is_operation(request.kind())) {
    throw std::invalid_argument(request.label() + " is not an operation");
  }
  return static_cast<Operation&>(request);
}

// --- Results -------------------------------------------------------------------------

namespace {

// Returns whether the request has its result, even if it raises an earlier failure.
bool was_carried_out(const BaseRequest& request) {
  return request.succeeded() || request.status().was_carried_out;
}

}  // namespace

bool Dispatcher::has_result(RequestId id) const {
  const BaseRequest& request = *requests_.at(id);
  if (!was_carried_out(request)) return false;
  if (request.kind() == RequestKind::kRecv) {
    return static_cast<const PointRequest&>(request).call().peer == kAnySource;
  }
  return is_operation(request.kind()) &&
         static_cast<const Operation&>(request).result().owner;
}

bool Dispatcher::release_if_plain(RequestId id) {
  if (!requests_.at(id)->succeeded() || has_result(id)) return false;
  requests_.release(id);
  return true;
}

const Result& Dispatcher::result(RequestId id) const {
  if (!has_result(id)) {
    throw std::invalid_argument("request " + std::to_string(id) +
                                " has no result of its own");
  }
  return operation(id).result();
}

int Dispatcher::source_of(RequestId id) const {
  const BaseRequest& request = *requests_.at(id);
  if (request.kind() != RequestKind::kRecv || !was_carried_out(request)) {
    throw std::invalid_argument(request.label() + " has received nothing");
  }
  return static_cast<const PointRequest&>(request).source();
}

// --- Closing -------------------------------------------------------------------------

void Dispatcher::close() {
  closing_ = true;
  const std::string why =
      "cut short, because rank " + std::to_string(config_.rank) + " shut down";
  fail_all(Code::kClosed, why, config_.rank);
  for_transports([](Transport& one) { one.close(); });
}

void Dispatcher::release_backends() {
  for_transports([](Transport& one) { one.release_backend(); });
}

void Dispatcher::free() {
  if (requests_.outstanding()) windows_.close(Code::kClosed, "the engine ended");
  while (requests_.outstanding()) {
    BaseRequest& request = *requests_.oldest();
    request.finish({Code::kClosed, request.label() + ": the engine ended", -1});
    requests_.end(request);
  }
  operations_.clear();
  matching_ = Matching();
  arrived_.clear();
  aborts_.clear();
  windows_.free();
  points_.free();
  members_.reset();
  peers_.disconnect();
  transports_.clear();
  broken_transports_.clear();
  requests_.check_held();
  requests_.never_free_held();
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
