#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "request/base_request.h"
#include "window/window.h"

namespace bluecomm {

// The public name of a call about a window, such as "win_create".
std::string_view window_call_name(RequestKind kind);

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

  // Sets how many ranks are asked.
  void expect_parts(std::size_t count) { unanswered_ = count; }
  // Notes the outcome of one part: the first failure becomes the status. If this was
  // the last unanswered part, finishes the request and returns true.
  bool end_part(Status status) {
    if (status_.ok()) status_ = std::move(status);
    if (--unanswered_ > 0) return false;
    finish();
    return true;
  }
  void finish() { state_ = State::kDone; }

 private:
  std::shared_ptr<Window> window_;
  std::size_t unanswered_ = 0;
};

}  // namespace bluecomm
