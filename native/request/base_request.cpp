#include "request/base_request.h"

#include <utility>

namespace bluecomm {

std::string BaseRequest::label() const {
  std::string text(kind_name());
  if (!name().empty()) text.append(" '").append(name()).append("'");
  return text.append(" on rank ").append(std::to_string(rank_));
}

void BaseRequest::raise_carried() {
  if (!carried_) return;
  if (status_.ok()) {
    status_ = std::move(*carried_);
    status_.text = label() + " was carried out; " + status_.text;
    status_.was_carried_out = true;
  } else {
    if (!status_.text.ends_with('.')) status_.text += '.';
    status_.text += " Before it, " + carried_->text;
  }
  carried_.reset();
}

}  // namespace bluecomm
