#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/py_cuda_device.h"
#include "bindings/register.h"
#include "bindings/release_gil.h"
#include "common/failure_watcher.h"
#include "common/ticket.h"
#include "device/nccl_call.h"
#include "device/nccl_library.h"
#include "device/nccl_puts.h"
#include "device/nccl_queue.h"

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

using device::NcclCall;
using device::NcclGroup;
using device::NcclLibrary;
using device::NcclPuts;
using device::NcclQueue;
using device::NcclWork;

NcclWork::Function parse_nccl_function(std::string_view kind) {
  if (kind == "allreduce") return NcclWork::Function::kAllReduce;
  if (kind == "broadcast") return NcclWork::Function::kBroadcast;
  if (kind == "allgather") return NcclWork::Function::kAllGather;
  if (kind == "reducescatter") return NcclWork::Function::kReduceScatter;
  throw std::invalid_argument("NCCL has no function for " + std::string(kind));
}

void set_reduction(NcclWork& work, std::string_view dtype, std::string_view op) {
  const std::optional<int> type = device::nccl_type(parse_dtype(dtype));
  if (!type) throw std::invalid_argument("NCCL cannot add " + std::string(dtype));
  work.type = *type;
  const std::optional<int> reduction = device::nccl_reduction(parse_op(op));
  if (!reduction) throw std::invalid_argument("NCCL has no " + std::string(op));
  work.reduction = *reduction;
}

std::shared_ptr<NcclCall> make_call(NcclQueue& self, const NcclGroup& group,
                                    std::string_view kind, std::uint64_t source,
                                    std::uint64_t destination, std::size_t count,
                                    std::string_view dtype, std::string_view op,
                                    int root, std::uintptr_t stream, double limit_s) {
  NcclWork work;
  work.function = parse_nccl_function(kind);
  work.from = source;
  work.to = destination;
  work.count = count;
  set_reduction(work, dtype, op);
  work.root = root;
  const ReleaseGil unlocked;
  return self.make_call(group, work, reinterpret_cast<device::CudaStream>(stream),
                        NcclCall::Limit(limit_s));
}

// Root, address of the input and of the result, and number of elements.
using PyReduction = std::tuple<int, std::uint64_t, std::uint64_t, std::size_t>;

std::shared_ptr<NcclCall> make_reduction(NcclQueue& self, const NcclGroup& group,
                                         const std::vector<PyReduction>& reductions,
                                         std::string_view dtype, std::string_view op,
                                         std::uintptr_t stream, double limit_s) {
  NcclWork work;
  work.function = NcclWork::Function::kReduce;
  for (const auto& [root, from, to, count] : reductions) {
    work.reductions.push_back({root, from, to, count});
  }
  set_reduction(work, dtype, op);
  const ReleaseGil unlocked;
  return self.make_call(group, work, reinterpret_cast<device::CudaStream>(stream),
                        NcclCall::Limit(limit_s));
}

// Peer, address and bytes.
using PyMessage = std::tuple<int, std::uint64_t, std::size_t>;

std::vector<device::NcclMessage> to_messages(const std::vector<PyMessage>& given,
                                             const char* direction, int size) {
  std::vector<device::NcclMessage> messages;
  for (const auto& [peer, address, nbytes] : given) {
    if (peer < 0 || peer >= size) {
      throw std::invalid_argument(std::string(direction) + " must name members below " +
                                  std::to_string(size) + ", got " +
                                  std::to_string(peer));
    }
    messages.push_back({peer, address, nbytes});
  }
  return messages;
}

std::shared_ptr<NcclCall> make_exchange(NcclQueue& self, const NcclGroup& group,
                                        const std::vector<PyMessage>& sends,
                                        const std::vector<PyMessage>& receives,
                                        bool compares_sizes, std::uintptr_t stream,
                                        double limit_s) {
  NcclWork work;
  work.function = NcclWork::Function::kExchange;
  work.sends = to_messages(sends, "sends", group.size());
  work.receives = to_messages(receives, "receives", group.size());
  work.compares_sizes = compares_sizes;
  const ReleaseGil unlocked;
  return self.make_call(group, work, reinterpret_cast<device::CudaStream>(stream),
                        NcclCall::Limit(limit_s));
}

// Returns an id for ranks that connect outside of a queue.
py::bytes make_nccl_id(const NcclLibrary& self) {
  device::NcclId id;
  self.check(self.call().get_unique_id(&id), "ncclGetUniqueId", nullptr);
  return {reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()};
}

void connect_puts(NcclPuts& self, std::string_view id, int rank, int size) {
  device::NcclId parsed;
  if (id.size() != parsed.bytes.size()) {
    throw std::invalid_argument("NCCL's ids have " +
                                std::to_string(parsed.bytes.size()) + " bytes, got " +
                                std::to_string(id.size()));
  }
  std::memcpy(parsed.bytes.data(), id.data(), id.size());
  const ReleaseGil unlocked;
  self.connect(parsed, rank, size);
}

}  // namespace

void register_nccl(py::module_& module) {
  using py::arg;
  py::class_<Ticket, std::shared_ptr<Ticket>>(module, "Ticket");
  py::class_<FailureWatcher, std::shared_ptr<FailureWatcher>>(module, "FailureWatcher");
  py::class_<NcclLibrary, std::shared_ptr<NcclLibrary>>(module, "NcclLibrary")
      .def(py::init(&device::open_nccl), arg("candidates"),
           py::call_guard<ReleaseGil>())
      .def_property_readonly("version",
                             [](const NcclLibrary& self) {
                               return device::describe_nccl_version(self.version());
                             })
      .def_property_readonly("has_puts", &NcclLibrary::has_puts)
      .def("make_id", &make_nccl_id);
  py::class_<NcclPuts>(module, "NcclPuts")
      .def(py::init([](std::shared_ptr<NcclLibrary> library, const PyCudaDevice& device,
                       std::size_t nbytes) {
             return std::make_unique<NcclPuts>(std::move(library), device.device,
                                               nbytes);
           }),
           py::kw_only(), arg("library"), arg("device"), arg("nbytes"),
           py::call_guard<ReleaseGil>())
      .def("connect", &connect_puts, arg("id"), arg("rank"), arg("size"))
      .def_property_readonly("address", &NcclPuts::address)
      .def("advance", &NcclPuts::advance, py::call_guard<ReleaseGil>())
      .def(
          "put",
          [](NcclPuts& self, int peer, std::size_t from, std::size_t to,
             std::size_t nbytes, std::uintptr_t stream) {
            self.put(peer, from, to, nbytes,
                     reinterpret_cast<device::CudaStream>(stream));
          },
          arg("peer"), arg("source"), arg("destination"), arg("nbytes"), arg("stream"),
          py::call_guard<ReleaseGil>())
      .def("await_puts", &NcclPuts::await_puts, arg("peer"), arg("count"),
           py::call_guard<ReleaseGil>())
      .def("point", &NcclPuts::point, py::call_guard<ReleaseGil>())
      .def("close", &NcclPuts::close, py::call_guard<ReleaseGil>())
      .def("abort", &NcclPuts::abort, py::call_guard<ReleaseGil>());
  py::class_<NcclCall, Ticket, std::shared_ptr<NcclCall>>(module, "NcclCall")
      .def(
          "follow",
          [](const NcclCall& self, std::uintptr_t stream) {
            return self.follow(reinterpret_cast<device::CudaStream>(stream));
          },
          arg("stream"), py::call_guard<ReleaseGil>())
      .def("poll",
           [](const NcclCall& self) {
             return self.has_ended() ? std::optional<Status>(Status{}) : std::nullopt;
           })
      .def("withdraw", &NcclCall::withdraw);
  py::class_<NcclGroup>(module, "NcclGroup")
      .def(py::init([](std::uint64_t id, int rank, std::vector<int> ranks) {
             return NcclGroup{id, rank, std::move(ranks)};
           }),
           py::kw_only(), arg("id"), arg("rank"), arg("ranks"));
  py::class_<NcclQueue, FailureWatcher, std::shared_ptr<NcclQueue>>(module, "NcclQueue")
      .def(py::init([](std::shared_ptr<NcclLibrary> library, const PyCudaDevice& device,
                       int rank, bool awaits_device) {
             return NcclQueue::open(std::move(library), device.device, rank,
                                    awaits_device);
           }),
           py::kw_only(), arg("library"), arg("device"), arg("rank"),
           arg("awaits_device"), py::call_guard<ReleaseGil>())
      .def("make_call", &make_call, py::kw_only(), arg("group"), arg("kind"),
           arg("source"), arg("destination"), arg("count"), arg("dtype"), arg("op"),
           arg("root"), arg("stream"), arg("limit_s"))
      .def("make_reduction", &make_reduction, py::kw_only(), arg("group"),
           arg("reductions"), arg("dtype"), arg("op"), arg("stream"), arg("limit_s"))
      .def("make_exchange", &make_exchange, py::kw_only(), arg("group"), arg("sends"),
           arg("receives"), arg("compares_sizes") = false, arg("stream"),
           arg("limit_s"))
      .def("enter", &NcclQueue::enter, arg("draft"), arg("group"),
           py::call_guard<ReleaseGil>())
      .def("forget_group", &NcclQueue::forget_group, arg("id"),
           py::call_guard<ReleaseGil>())
      .def("failure_of", &NcclQueue::failure_of, arg("group"))
      .def("suspend", &NcclQueue::suspend, py::call_guard<ReleaseGil>())
      .def("resume", &NcclQueue::resume, py::call_guard<ReleaseGil>())
      .def(
          "close",
          [](NcclQueue& self, double timeout_s) { self.close(to_duration(timeout_s)); },
          arg("timeout_s"), py::call_guard<ReleaseGil>());
}

}  // namespace bluecomm::bindings
