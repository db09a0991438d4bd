#pragma once

#include <optional>
#include <string>

#include "transport/channel.h"

namespace bluecomm {

// The other ranks, as far as windows need them.
class WindowLinks {
 public:
  virtual ~WindowLinks() = default;

  // Null: the rank is gone.
  virtual Channel* channel(int rank) const = 0;
  virtual bool is_gone(int rank) const = 0;
  // Why, once it is known for certain that nothing more will come from it.
  virtual std::optional<std::string> why_gone(int rank) const = 0;
  // rank 1 (hostB)
  virtual std::string describe_rank(int rank) const = 0;
};

}  // namespace bluecomm
