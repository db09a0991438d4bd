#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace bluecomm {

// Starts a thread with all signals blocked, so that they are delivered to the program's
// own threads.
template <typename Body>
std::thread start_quiet_thread(Body&& body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::forward<Body>(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace bluecomm
