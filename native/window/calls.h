#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "request/base_request.h"
#include "request/wait_stats.h"
#include "window/service.h"
#include "window/window.h"
#include "window/window_request.h"

// The calls of a program about its windows. Each does what it can in memory that
// neighbors share with this rank: immediately, on the calling thread, without the
// progress lock. For the other neighbors it starts a request at the rank's
// WindowService.

namespace bluecomm {

// The engine, as the calls use it. Thread-safe.
class WindowHost {
 public:
  virtual RequestId next_request_id() = 0;
  virtual WaitStats& wait_stats() = 0;
  // Start a request at the WindowService, under the progress lock. `blocking` says that
  // the caller waits for it immediately.
  virtual void start_put(std::shared_ptr<WindowRequest> request, const WindowPut& put,
                         bool blocking) = 0;
  virtual void start_get(std::shared_ptr<WindowRequest> request, const WindowGet& get,
                         bool blocking) = 0;

 protected:
  ~WindowHost() = default;
};

// Leaves a value with out-neighbors; `call.p` need not be set. Returns 0 if the call
// has ended because all targets share memory with this rank. Otherwise returns the
// request that the caller must wait for; x must stay unchanged until it is done. `id`
// comes from host.next_request_id(); 0 stands for a new one.
RequestId put(WindowHost& host, const std::shared_ptr<Window>& window,
              const WindowPut& call, Clock::time_point deadline, bool blocking,
              RequestId id = 0);

// Reads the in-neighbors' own values. Returns the same as put().
RequestId get(WindowHost& host, const std::shared_ptr<Window>& window,
              const WindowGet& call, Clock::time_point deadline, bool blocking,
              RequestId id = 0);

// Window::update(), counted.
void update(WindowHost& host, const std::shared_ptr<Window>& window,
            std::span<std::byte> result, std::span<const std::byte> own,
            const Window::Update& update);

}  // namespace bluecomm
