#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/call.h"
#include "bindings/kept.h"
#include "bindings/py_engine.h"
#include "bindings/register.h"
#include "bindings/release_gil.h"
#include "bindings/stats.h"
#include "bindings/transports.h"
#include "common/shared_memory.h"
#include "engine/engine.h"
#include "engine/neutral.h"

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

std::unique_ptr<PyEngine> make_engine(
    int rank, int size, const std::string& job, std::uint32_t epoch,
    const py::bytes& secret, const std::string& socket_dir,
    std::vector<std::string> addresses, const std::string& machine,
    const std::string& transport, int tcp_streams, const std::string& encryption,
    double link_timeout_s, std::size_t eager_bytes, std::size_t staging_bytes,
    bool survives_losses, bool splits, std::shared_ptr<SharedMemory> memory,
    std::shared_ptr<Recorder> recorder, std::shared_ptr<mpi::Session> mpi) {
  if (rank < 0 || rank >= size) {
    throw std::invalid_argument("rank must be in 0 .. size - 1, got rank " +
                                std::to_string(rank) + " of " + std::to_string(size));
  }
  auto limits = std::make_shared<stream::SendingLimits>();
  const TransportOptions options{.rank = rank,
                                 .job = job,
                                 .epoch = epoch,
                                 .machine = machine,
                                 .secret = secret,
                                 .socket_dir = socket_dir,
                                 .addresses = std::move(addresses),
                                 .tcp_streams = tcp_streams,
                                 .encryption = encryption,
                                 .link_timeout_s = link_timeout_s,
                                 .limits = limits,
                                 .eager_bytes = eager_bytes,
                                 .staging_bytes = staging_bytes,
                                 .memory = memory,
                                 .mpi = mpi};
  EngineConfig config;
  config.rank = rank;
  config.size = size;
  config.job = job;
  config.epoch = epoch;
  config.machine = machine;
  config.survives_losses = survives_losses;
  if (splits) config.minority = Membership::Minority::kSplits;
  config.recorder = std::move(recorder);
  config.allocate = [memory = std::move(memory)](std::size_t nbytes) {
    auto block = std::make_shared<SharedBlock>(memory->allocate(nbytes));
    Result result;
    result.bytes = block->bytes();
    result.owner = std::move(block);
    return result;
  };
  const ReleaseGil unlocked;
  std::vector<std::unique_ptr<Transport>> transports;
  if (size > 1) transports = make_transports(transport, options);
  return std::make_unique<PyEngine>(std::move(config), std::move(transports),
                                    std::move(limits), std::move(mpi));
}

void start(PyEngine& self, const py::sequence& peers) {
  std::vector<Peer> parsed = parse_peers(peers);
  const ReleaseGil unlocked;
  self.use().start(std::move(parsed));
}

void add_group(PyEngine& self, std::uint64_t group_id, std::vector<int> ranks,
               std::vector<int> machine_of, std::optional<std::uint64_t> parent) {
  const ReleaseGil unlocked;
  self.use().add_group(group_id, std::move(ranks), std::move(machine_of), parent);
}

// Starts the operation of a Call and keeps the call in `kept`; see bindings/kept.h. A
// blocking operation runs here until it has ended. Returns 0 if it succeeded and has no
// result to fetch: then there is nothing to wait for or to release.
RequestId submit(PyEngine& self, const py::object& call,
                 const std::optional<py::dict>& kept) {
  Engine& engine = self.use();
  ParsedCall parsed = parse_call(call);
  py::dict table = kept ? *kept : py::dict();
  const auto start = [&](auto& one) {
    if (parsed.blocking) {
      return keep_blocking(table, call, [&] {
        set_group(one, engine.group(parsed.group_id));
        return engine.run(std::move(one));
      });
    }
    return keep_nonblocking(table, call, engine.next_request_id(), [&](RequestId id) {
      set_group(one, engine.group(parsed.group_id));
      return engine.submit(std::move(one), Engine::Caller::kGoesOn, id);
    });
  };
  return std::visit(start, parsed.call);
}

// Throws std::invalid_argument for a send or a receive.
Call& operation_of(ParsedCall& parsed) {
  if (auto* const operation = std::get_if<Call>(&parsed.call)) return *operation;
  throw std::invalid_argument("a send or a receive is not an operation of a group");
}

// Waits for requests, and then runs an operation without memory, as submit() does for a
// blocking call. Returns None if it has not started; see Engine::run_after().
std::optional<RequestId> run_after(PyEngine& self, const std::vector<RequestId>& ids,
                                   const py::object& call) {
  Engine& engine = self.use();
  ParsedCall parsed = parse_call(call);
  Call& operation = operation_of(parsed);
  const ReleaseGil unlocked;
  set_group(operation, engine.group(parsed.group_id));
  return engine.run_after(ids, std::move(operation));
}

// Counts a call that the program has refused to make, and tells the ranks that take
// part in it, or the whole group. `code` and `rank` are those of a Status.
void refuse(PyEngine& self, const py::object& call, const std::string& reason,
            bool to_group, int code, int rank) {
  Engine& engine = self.use();
  ParsedCall parsed = parse_call(call);
  Call& operation = operation_of(parsed);
  const ReleaseGil unlocked;
  set_group(operation, engine.group(parsed.group_id));
  engine.refuse(
      operation, {static_cast<Code>(code), reason, rank},
      to_group ? Dispatcher::Informed::kGroup : Dispatcher::Informed::kParticipants);
}

// Returns how many operations with the group and name of `call` have been counted.
std::uint32_t calls_like(PyEngine& self, const py::object& call) {
  Engine& engine = self.use();
  ParsedCall parsed = parse_call(call);
  Call& operation = operation_of(parsed);
  const ReleaseGil unlocked;
  set_group(operation, engine.group(parsed.group_id));
  return engine.calls_like(operation);
}

std::optional<Status> wait(PyEngine& self, RequestId id, double timeout_s) {
  Engine& engine = self.use();
  std::optional<Status> status;
  {
    ReleaseGil unlocked;
    status = engine.wait(id, deadline_after(timeout_s),
                         [&unlocked] { return unlocked.check_signals(); });
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return status;
}

// Returns the outcome, or None, and the bytes of the result that are final.
py::tuple wait_part(PyEngine& self, RequestId id, std::size_t nbytes,
                    double timeout_s) {
  Engine& engine = self.use();
  Engine::Part part;
  {
    ReleaseGil unlocked;
    part = engine.wait_part(id, nbytes, deadline_after(timeout_s),
                            [&unlocked] { return unlocked.check_signals(); });
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return py::make_tuple(part.status, part.final_prefix);
}

py::tuple output(PyEngine& self, RequestId id) {
  Result result;
  {
    const ReleaseGil unlocked;
    result = self.use().result(id);
  }
  return py::make_tuple(std::static_pointer_cast<SharedBlock>(result.owner),
                        result.rows);
}

py::list pending(PyEngine& self) {
  std::vector<PendingRequest> requests;
  {
    const ReleaseGil unlocked;
    requests = self.use().pending();
  }
  py::list list;
  for (const PendingRequest& one : requests) {
    list.append(py::dict(
        py::arg("id") = one.id, py::arg("kind") = one.kind, py::arg("name") = one.name,
        py::arg("group") = one.group, py::arg("age_s") = one.age_s,
        py::arg("waiting_for") = one.waiting_for, py::arg("wish") = one.wish,
        py::arg("received_bytes") = one.received_bytes,
        py::arg("expected_bytes") = one.expected_bytes));
  }
  return list;
}

// Returns None after `timeout_s`, or once the engine is closed.
py::object next_member_change(PyEngine& self, double timeout_s) {
  std::optional<MemberChange> change;
  {
    const ReleaseGil unlocked;
    change = self.use().next_member_change(deadline_after(timeout_s));
  }
  if (!change) return py::none();
  const auto name = [&] {
    switch (change->kind) {
      case MemberChange::ChangeKind::kGone:
        return "gone";
      case MemberChange::ChangeKind::kHeld:
        return "held";
      case MemberChange::ChangeKind::kReleased:
        return "released";
      case MemberChange::ChangeKind::kSplit:
        return "split";
      case MemberChange::ChangeKind::kExcluded:
        break;
    }
    return "excluded";
  };
  return py::dict(py::arg("kind") = name(), py::arg("rank") = change->rank,
                  py::arg("cause") = change->cause,
                  py::arg("silent_s") = change->silent_s,
                  py::arg("text") = change->text);
}

py::object take_announced(PyEngine& self) {
  std::optional<Call> call;
  {
    const ReleaseGil unlocked;
    call = self.use().take_announced();
  }
  return call ? py::object(describe_announced(*call)) : py::none();
}

// Returns the bytes of the value that does not change a reduction.
py::bytes neutral_value(std::string_view dtype, std::string_view op, double prescale) {
  const DType type = parse_dtype(dtype);
  std::vector<char> value(item_size(type));
  fill_neutral(std::as_writable_bytes(std::span(value)), type, parse_op(op), prescale);
  return {value.data(), value.size()};
}

py::dict stats(PyEngine& self) {
  Stats stats;
  {
    const ReleaseGil unlocked;
    stats = self.use().stats();
  }
  return to_dict(stats);
}

void fail(PyEngine& self, RequestId id, int code, std::string text) {
  if (code <= static_cast<int>(Code::kOk) || code > static_cast<int>(Code::kInternal)) {
    throw std::invalid_argument("code must be in 1 .. 7, got " + std::to_string(code));
  }
  const ReleaseGil unlocked;
  self.use().fail(id, {static_cast<Code>(code), std::move(text), -1});
}

void close(PyEngine& self, double timeout_s) {
  if (self.in_child()) return;
  const ReleaseGil unlocked;
  self.use().close(to_duration(timeout_s));
}

// Calls `method` of the engine without the GIL.
template <typename Result, typename... Args>
auto unlocked(Result (Engine::*method)(Args...)) {
  return [method](PyEngine& self, Args... args) {
    const ReleaseGil unlocked;
    return (self.use().*method)(std::move(args)...);
  };
}

}  // namespace

void register_engine(py::module_& module) {
  using py::arg;
  py::class_<Status>(module, "Completion")
      .def_property_readonly(
          "code", [](const Status& self) { return static_cast<int>(self.code); })
      .def_readonly("text", &Status::text)
      .def_readonly("rank", &Status::rank)
      .def_readonly("was_carried_out", &Status::was_carried_out);

  module.def("transport_names", &transport_names);
  module.def("neutral_value", &neutral_value, arg("dtype"), arg("op"), arg("prescale"));

  py::class_<PyEngine>(module, "Engine")
      .def(py::init(&make_engine), py::kw_only(), arg("rank"), arg("size"), arg("job"),
           arg("epoch"), arg("secret"), arg("socket_dir"), arg("addresses"),
           arg("machine"), arg("transport") = "auto", arg("tcp_streams") = 0,
           arg("encryption") = "off", arg("link_timeout_s") = 30.0,
           arg("eager_bytes") = 4096, arg("staging_bytes") = std::size_t{8} << 20,
           arg("survives_losses") = false, arg("splits") = false, arg("memory"),
           arg("recorder") = nullptr, arg("mpi") = nullptr)
      .def("offers", unlocked(&Engine::offers))
      .def("start", &start, arg("peers"))
      .def("transport_of", unlocked(&Engine::transport_of), arg("rank"))
      .def("limit_sending", &PyEngine::limit_sending, arg("streams"),
           arg("chunk_nbytes"))
      .def("add_group", &add_group, arg("group_id"), arg("ranks"), arg("machine_of"),
           arg("parent") = std::nullopt)
      .def("remove_group", unlocked(&Engine::remove_group), arg("group_id"))
      .def("submit", &submit, arg("call"), arg("kept") = std::nullopt)
      .def("run_after", &run_after, arg("requests"), arg("call"))
      .def("refuse", &refuse, arg("call"), arg("reason"), arg("to_group"), arg("code"),
           arg("rank"))
      .def("calls_like", &calls_like, arg("call"))
      .def(
          "is_in_flight",
          [](PyEngine& self, const std::string& kind, std::uint64_t group_id,
             const std::string& name) {
            const std::optional<Kind> known = kind_from_name(kind);
            const ReleaseGil unlocked;
            return known && self.use().is_in_flight(*known, group_id, name);
          },
          arg("kind"), arg("group_id"), arg("name"))
      .def("done", unlocked(&Engine::done), arg("request"))
      .def("wait", &wait, arg("request"), arg("timeout_s"))
      .def("wait_part", &wait_part, arg("request"), arg("nbytes"), arg("timeout_s"))
      .def("watch", unlocked(&Engine::watch), arg("request"))
      .def(
          "next_done",
          [](PyEngine& self, double timeout_s) {
            const ReleaseGil unlocked;
            return self.use().next_done(deadline_after(timeout_s));
          },
          arg("timeout_s"))
      .def("output", &output, arg("request"))
      .def("source_of", unlocked(&Engine::source_of), arg("request"))
      .def("release", unlocked(&Engine::release), arg("request"))
      .def("finished", unlocked(&Engine::finished))
      .def("held", unlocked(&Engine::held))
      .def("fail", &fail, arg("request"), arg("code"), arg("text"))
      .def(
          "extend_deadline",
          [](PyEngine& self, RequestId id, double seconds) {
            const ReleaseGil unlocked;
            self.use().extend_deadline(id, to_duration(seconds));
          },
          arg("request"), arg("seconds"))
      .def("pending", &pending)
      .def("peer_lost", unlocked(&Engine::peer_lost), arg("rank"), arg("text"))
      .def("leave_members", unlocked(&Engine::leave_members), arg("text"))
      .def("watch_failures", unlocked(&Engine::watch_failures), arg("watcher"))
      .def("next_member_change", &next_member_change, arg("timeout_s"))
      .def("tell_failing", unlocked(&Engine::tell_failing), arg("what"))
      .def("take_late_failure", unlocked(&Engine::take_late_failure))
      .def("stats", &stats)
      .def("reset_stats", unlocked(&Engine::reset_stats))
      .def("join", unlocked(&Engine::join))
      .def("join_report",
           [](PyEngine& self) {
             const ReleaseGil unlocked;
             const Dispatcher::JoinReport report = self.use().join_report();
             return std::pair(report.answers, report.sequence);
           })
      .def("take_announced", &take_announced)
      .def("leave_join", unlocked(&Engine::leave_join), arg("sequence"))
      .def("suspend", unlocked(&Engine::suspend))
      .def("resume", unlocked(&Engine::resume))
      .def("close", &close, arg("timeout_s"));
}

}  // namespace bluecomm::bindings
