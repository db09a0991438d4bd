#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "request/base_request.h"
#include "window/window.h"

namespace bluecomm {

// The public name of a call about a window, such as "win_create".
std::string_view window_call_name(RequestKind kind);

class WindowRequest;

// The WindowService, as its requests use it.
class WindowRequestHost {
 public:
  // Fails the unanswered parts of a request.
  virtual void fail(const WindowRequest& request, const Status& status) = 0;
  // Fails the unanswered parts because the deadline has passed; the error names the
  // ranks.
  virtual void expire(const WindowRequest& request) = 0;
  virtual BaseRequest::Awaited awaited(const WindowRequest& request) const = 0;

 protected:
  ~WindowRequestHost() = default;
};

// A call about a window. It is done when each rank that WindowService asks has answered
// its part; a call that asks nobody never enters a RequestTable.
class WindowRequest final : public BaseRequest {
 public:
  WindowRequest(RequestId id, RequestKind kind, std::shared_ptr<Window> window,
                Clock::time_point deadline)
      : BaseRequest(id, kind, window->config().rank, State::kRunning, deadline),
        window_(std::move(window)) {}

  std::string_view kind_name() const override { return window_call_name(kind()); }
  std::string_view name() const override { return window_->config().name; }
  TraceFields trace_fields() const override {
    return {0, static_cast<std::uint32_t>(id()), 0};
  }
  const std::shared_ptr<Window>& window() const { return window_; }

  Awaited awaited() const override { return host_->awaited(*this); }
  void abort(Status status) override { host_->fail(*this, status); }
  void expire() override { host_->expire(*this); }
  // Keeps the first failure.
  void finish(Status status = {}) override {
    if (status_.ok()) status_ = std::move(status);
    state_ = State::kDone;
  }

  // Hands the request to `host`, which asks a rank for each of the numbered parts.
  void enter(WindowRequestHost& host, std::vector<RequestId> parts) {
    host_ = &host;
    unanswered_ = std::move(parts);
  }
  const std::vector<RequestId>& unanswered() const { return unanswered_; }
  // Notes the outcome of one part: the first failure becomes the status. If this was
  // the last unanswered part, finishes the request and returns true.
  bool end_part(RequestId part, Status status) {
    std::erase(unanswered_, part);
    if (status_.ok()) status_ = std::move(status);
    if (!unanswered_.empty()) return false;
    finish();
    return true;
  }

 private:
  std::shared_ptr<Window> window_;
  WindowRequestHost* host_ = nullptr;
  std::vector<RequestId> unanswered_;
};

}  // namespace bluecomm
