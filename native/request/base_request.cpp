#include "request/base_request.h"

namespace bluecomm {

std::string BaseRequest::label() const {
  std::string text(kind_name());
  if (!name().empty()) text.append(" '").append(name()).append("'");
  return text.append(" on rank ").append(std::to_string(rank_));
}

}  // namespace bluecomm
