// Communicators of the fake NCCL as its functions see them: which exist, what state
// they are in, and how they do something without a wait of the caller.
#pragma once

#include <signal.h>

#include <mutex>
#include <thread>
#include <utility>

#include "comm.h"
#include "report.h"

namespace fakegpu {

ncclComm_t add_comm(int rank, int size, int device, bool is_blocking);

// Returns whether it is a communicator that is neither destroyed nor aborted; otherwise
// reports a violation by `function`.
bool is_comm(ncclComm_t comm, const char* function);

// Checks that a communicator takes operations.
ncclResult_t check_ready(ncclComm_t comm, const char* function);

// Notices two threads in one communicator.
class InCall {
 public:
  InCall(ncclComm_t comm, const char* function) : comm_(comm) {
    is_alone_ = !comm_->in_call.exchange(true);
    if (!is_alone_) violation(function, "another thread is using the communicator");
  }
  ~InCall() {
    if (is_alone_) comm_->in_call = false;
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  ncclComm_t comm_;
  bool is_alone_;
};

// Returns a thread that runs `body` and gets no signals.
template <typename Body>
std::thread start_apart(Body&& body) {
  sigset_t signals;
  sigset_t before;
  sigfillset(&signals);
  pthread_sigmask(SIG_SETMASK, &signals, &before);
  std::thread started(std::forward<Body>(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void set_state(FakeComm& comm, CommState state);

// Runs `body` and then makes the communicator ready: at once if it is blocking, else
// on a thread. Returns what the call returns.
template <typename Body>
ncclResult_t run_for(FakeComm& comm, Body body) {
  const auto run = [&comm, body = std::move(body)]() mutable {
    body();
    set_state(comm, CommState::kReady);
  };
  if (!comm.is_blocking) {
    start_apart(std::move(run)).detach();
    return kNcclInProgress;
  }
  auto mutable_run = std::move(run);
  mutable_run();
  const std::scoped_lock lock(comm.mutex);
  return comm.error;
}

}  // namespace fakegpu
