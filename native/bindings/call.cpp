// Converts a Python Call into a C++ Call, which Engine.submit passes to the engine. A
// small operation takes microseconds, so attributes are read by interned name and the
// parameters, which are the same from call to call, come as one native object.

#include "bindings/call.h"

#include <pybind11/stl.h>

#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/register.h"

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

// Parameters of an operation besides its tensors. Python keeps and reuses equal ones.
struct Parameters {
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = 0;
  std::vector<std::int64_t> splits;
  bool local_only = false;
  std::optional<Algorithm> algorithm;
  double self_weight = 1.0;
  std::vector<Weight> sources;
  std::vector<Weight> destinations;
  int peer = kAnySource;
  std::int64_t tag = 0;
};

Parameters make_parameters(std::string_view op, double prescale, double postscale,
                           int root, std::vector<std::int64_t> splits, bool local_only,
                           std::string_view algorithm, double self_weight,
                           std::vector<Weight> sources,
                           std::vector<Weight> destinations, int peer,
                           std::int64_t tag) {
  return {parse_op(op),
          prescale,
          postscale,
          root,
          std::move(splits),
          local_only,
          parse_algorithm(algorithm),
          self_weight,
          std::move(sources),
          std::move(destinations),
          peer,
          tag};
}

// The name of an attribute of Call, interned once for the life of the process.
class Attribute {
 public:
  explicit Attribute(const char* name) : name_(PyUnicode_InternFromString(name)) {}

  py::object of(py::handle call) const {
    PyObject* value = PyObject_GetAttr(call.ptr(), name_);
    if (value == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(value);
  }

 private:
  PyObject* name_;
};

struct Attributes {
  Attribute kind{"kind"};
  Attribute name{"name"};
  Attribute dtype{"dtype"};
  Attribute shape{"shape"};
  Attribute source{"source"};
  Attribute destination{"destination"};
  Attribute parameters{"parameters"};
  Attribute limit_s{"limit_s"};
  Attribute group_id{"group_id"};
  Attribute blocking{"blocking"};
  Attribute gate{"gate"};
  Attribute ticket{"ticket"};
  Attribute precedes_ticket{"precedes_ticket"};
  Attribute follows{"follows"};
  Attribute raises_late{"raises_late"};
};

std::span<std::byte> read_span(const py::object& span) {
  const auto [address, nbytes] = span.cast<std::pair<std::uintptr_t, std::size_t>>();
  return memory_at(address, nbytes);
}

// A destination is one span, or a list of the spans that an operation divides its
// result among.
void read_destination(const py::object& destination, Call& call) {
  if (!py::isinstance<py::list>(destination)) {
    call.output = read_span(destination);
    return;
  }
  for (const py::handle span : destination) {
    call.outputs.push_back(read_span(py::reinterpret_borrow<py::object>(span)));
  }
}

// Never freed, because it refers to Python objects.
const Attributes& attributes_of_call() {
  static const Attributes& attributes = *new Attributes;
  return attributes;
}

PointCall parse_point_call(py::handle call, RequestKind kind) {
  const Attributes& attributes = attributes_of_call();
  PointCall result;
  result.kind = kind;
  result.name = attributes.name.of(call).cast<std::string>();
  result.dtype = parse_dtype(attributes.dtype.of(call).cast<std::string_view>());
  result.shape = attributes.shape.of(call).cast<std::vector<std::int64_t>>();
  result.memory =
      read_span(kind == RequestKind::kSend ? attributes.source.of(call)
                                           : attributes.destination.of(call));
  if (const py::object gate = attributes.gate.of(call); !gate.is_none()) {
    result.gate = gate.cast<std::shared_ptr<Gate>>();
  }
  result.raises_late = attributes.raises_late.of(call).ptr() == Py_True;
  const py::object given = attributes.parameters.of(call);
  const auto& parameters = given.cast<const Parameters&>();
  result.peer = parameters.peer;
  result.tag = parameters.tag;
  return result;
}

Call parse_operation(py::handle call, Kind kind) {
  const Attributes& attributes = attributes_of_call();
  Call result;
  result.kind = kind;
  result.name = attributes.name.of(call).cast<std::string>();
  const py::object dtype = attributes.dtype.of(call);
  result.dtype = parse_dtype(dtype.cast<std::string_view>());
  result.shape = attributes.shape.of(call).cast<std::vector<std::int64_t>>();
  result.input = read_span(attributes.source.of(call));
  read_destination(attributes.destination.of(call), result);
  if (const py::object gate = attributes.gate.of(call); !gate.is_none()) {
    result.gate = gate.cast<std::shared_ptr<Gate>>();
  }
  if (const py::object ticket = attributes.ticket.of(call); !ticket.is_none()) {
    result.ticket = ticket.cast<std::shared_ptr<Ticket>>();
  }
  result.precedes_ticket = attributes.precedes_ticket.of(call).ptr() == Py_True;
  result.follows = attributes.follows.of(call).ptr() == Py_True;
  result.raises_late = attributes.raises_late.of(call).ptr() == Py_True;
  const py::object given = attributes.parameters.of(call);
  if (!given.is_none()) {
    const auto& parameters = given.cast<const Parameters&>();
    result.op = parameters.op;
    result.prescale = parameters.prescale;
    result.postscale = parameters.postscale;
    result.root = parameters.root;
    result.splits = parameters.splits;
    result.local_only = parameters.local_only;
    result.algorithm = parameters.algorithm;
    result.self_weight = parameters.self_weight;
    result.sources = parameters.sources;
    result.destinations = parameters.destinations;
  }
  return result;
}

}  // namespace

ParsedCall parse_call(py::handle call) {
  const Attributes& attributes = attributes_of_call();
  ParsedCall parsed;
  const py::object kind = attributes.kind.of(call);
  const auto word = kind.cast<std::string_view>();
  if (const auto point = point_kind_from_name(word)) {
    parsed.call = parse_point_call(call, *point);
  } else {
    parsed.call = parse_operation(call, parse_kind(word));
  }
  const double limit_s = attributes.limit_s.of(call).cast<double>();
  std::visit([&](auto& one) { one.deadline = deadline_after(limit_s); }, parsed.call);
  parsed.group_id = attributes.group_id.of(call).cast<std::uint64_t>();
  parsed.blocking = attributes.blocking.of(call).cast<bool>();
  return parsed;
}

void set_group(Call& call, std::shared_ptr<const Group> group) {
  call.group = std::move(group);
}

void set_group(PointCall& call, const std::shared_ptr<const Group>& group) {
  call.group = group->id;
  call.members = {group, &group->ranks};
  if (call.peer == kAnySource && call.kind == RequestKind::kRecv) return;
  if (call.peer < 0 || call.peer >= group->size()) {
    throw std::invalid_argument("peer must be in 0 .. " +
                                std::to_string(group->size() - 1) + ", got " +
                                std::to_string(call.peer));
  }
  call.peer = group->ranks[static_cast<std::size_t>(call.peer)];
}

py::tuple describe_announced(const Call& call) {
  Parameters parameters;
  parameters.op = call.op;
  parameters.prescale = call.prescale;
  parameters.postscale = call.postscale;
  parameters.splits = call.splits;
  parameters.local_only = call.local_only;
  return py::make_tuple(call.group->id, kind_name(call.kind), call.name,
                        dtype_name(call.dtype), call.shape, std::move(parameters));
}

void register_call(py::module_& module) {
  using py::arg;
  py::class_<Parameters>(module, "Parameters")
      .def(py::init(&make_parameters), py::kw_only(), arg("op") = "sum",
           arg("prescale") = 1.0, arg("postscale") = 1.0, arg("root") = 0,
           arg("splits") = std::vector<std::int64_t>(), arg("local_only") = false,
           arg("algorithm") = "auto", arg("self_weight") = 1.0,
           arg("sources") = std::vector<Weight>(),
           arg("destinations") = std::vector<Weight>(), arg("peer") = kAnySource,
           arg("tag") = 0)
      .def_property_readonly("op",
                             [](const Parameters& self) { return op_word(self.op); })
      .def_readonly("prescale", &Parameters::prescale)
      .def_readonly("postscale", &Parameters::postscale)
      .def_readonly("root", &Parameters::root)
      .def_readonly("splits", &Parameters::splits)
      .def_readonly("local_only", &Parameters::local_only)
      .def_readonly("self_weight", &Parameters::self_weight)
      .def_readonly("sources", &Parameters::sources)
      .def_readonly("destinations", &Parameters::destinations)
      .def_readonly("peer", &Parameters::peer)
      .def_readonly("tag", &Parameters::tag);
}

}  // namespace bluecomm::bindings
