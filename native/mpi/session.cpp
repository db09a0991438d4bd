#include "mpi/session.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "common/never_free.h"

namespace bluecomm::mpi {

std::shared_ptr<Session> Session::open(std::shared_ptr<Library> library,
                                       std::shared_ptr<Communicator> communicator,
                                       std::chrono::steady_clock::time_point deadline,
                                       const std::function<bool()>& interrupted,
                                       std::vector<int>& missing) {
  // The last tag is the least likely to be used by the program.
  ExchangedRecords all =
      exchange_records(*communicator, kMaxTag, "", deadline, interrupted);
  missing = std::move(all.missing);
  if (all.records.empty()) return nullptr;
  return std::make_shared<Session>(std::move(library), communicator->duplicate());
}

Session::Session(std::shared_ptr<Library> library, std::shared_ptr<Communicator> own)
    : library_(std::move(library)), communicator_(std::move(own)) {
  library_->before_finalize(
      [finalize_hooks = finalize_hooks_] { finalize_hooks->run(); });
}

Session::~Session() {
  // MPI may still use the memory.
  for (AbandonedRequest& one : abandoned_) never_free(std::move(one.memory));
}

ExchangedRecords Session::exchange(const std::string& mine,
                                   std::chrono::steady_clock::time_point deadline,
                                   const std::function<bool()>& interrupted) {
  return exchange_records(*communicator_, 0, mine, deadline, interrupted);
}

int Session::take_port() {
  if (!free_ports_.empty()) {
    const int port = free_ports_.front();
    free_ports_.erase(free_ports_.begin());
    return port;
  }
  if (ports_used_ == kPorts) {
    throw std::runtime_error(
        "bluecomm was started over MPI " + std::to_string(kPorts - 1) +
        " times in this process without a clean shutdown; restart the program");
  }
  return ports_used_++;
}

void Session::abandon(RequestHandle request, std::shared_ptr<const void> memory) {
  poll_abandoned();
  abandoned_.push_back({request, std::move(memory)});
}

bool Session::poll_abandoned() {
  std::erase_if(abandoned_, [this](AbandonedRequest& one) {
    return communicator_->test(one.request).has_value();
  });
  return abandoned_.empty();
}

}  // namespace bluecomm::mpi
