#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/operation.h"

namespace bluecomm {

// Memory of a result that the engine allocated, and the rows that came from each
// source.
struct Result {
  std::shared_ptr<void> owner;
  std::span<std::byte> bytes;
  std::vector<std::int64_t> rows;
};

// Operations that have ended while a transport was reading their memory, and still is.
// Their plans and results live on here.
class Leaving {
 public:
  void add(std::shared_ptr<Operation> operation);
  // The result of the operation, if it is one of these. False: it is not.
  bool keep(const Operation& operation, Result result);
  // Those whose memory nobody reads any more, which are forgotten here.
  std::vector<RequestId> take_free();
  std::vector<RequestId> ids() const;
  bool empty() const { return list_.empty(); }
  // When nobody will say any more what is read: nothing of theirs is ever freed.
  void never_free() const;

 private:
  struct One {
    std::shared_ptr<Operation> operation;
    Result result;
  };
  std::vector<One> list_;
};

}  // namespace bluecomm
