#include "tests/p2p/points.h"

#include <optional>
#include <utility>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

PointCall point_call(Engine& engine, RequestKind kind, std::span<float> values,
                     int peer, std::int64_t tag, std::uint64_t group) {
  const std::shared_ptr<const Group> members = engine.group(group);
  PointCall call;
  call.kind = kind;
  call.name = "tag " + std::to_string(tag);
  call.group = group;
  call.members = {members, &members->ranks};
  call.peer = peer;
  call.tag = tag;
  call.dtype = DType::kFloat32;
  call.shape = {static_cast<std::int64_t>(values.size())};
  call.memory = std::as_writable_bytes(values);
  call.deadline = Clock::now() + kDeadline;
  return call;
}

}  // namespace

PointCall send_call(Engine& engine, std::span<float> values, int peer, std::int64_t tag,
                    std::uint64_t group) {
  return point_call(engine, RequestKind::kSend, values, peer, tag, group);
}

PointCall recv_call(Engine& engine, std::span<float> values, int peer, std::int64_t tag,
                    std::uint64_t group) {
  return point_call(engine, RequestKind::kRecv, values, peer, tag, group);
}

Status finish(Engine& engine, RequestId id) {
  const std::optional<Status> status = engine.wait(id, Clock::now() + kDeadline);
  if (!status) return {Code::kInternal, "wait() gave up after the deadline", -1};
  engine.release(id);
  return *status;
}

Status run_point(Engine& engine, PointCall call) {
  return finish(engine, engine.submit(std::move(call), Engine::Caller::kWaits));
}

}  // namespace bluecomm::test
