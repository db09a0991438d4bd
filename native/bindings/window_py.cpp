#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/kept.h"
#include "bindings/py_engine.h"
#include "bindings/register.h"
#include "bindings/release_gil.h"
#include "common/shared_memory.h"
#include "engine/engine.h"

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

// One window of an engine with the checks that Python callers need.
class PyWindow {
 public:
  PyWindow(PyEngine& engine, WindowConfig config, std::uintptr_t address,
           const std::shared_ptr<SharedMemory>& memory)
      : engine_(engine),
        window_(std::make_shared<Window>(
            std::move(config), memory_at(address, config.nbytes),
            [memory](std::size_t nbytes) {
              // The deleter keeps the block alive as long as the window uses it.
              auto block = std::make_shared<SharedBlock>(memory->allocate(nbytes));
              auto* const bytes = new std::span<std::byte>(block->bytes());
              return Window::Memory(bytes, [block](auto* span) { delete span; });
            })) {}

  Window& window() { return *window_; }
  RequestId next_request_id() { return engine_.use().next_request_id(); }

  RequestId open(double timeout_s) {
    return engine_.use().with_windows([&](WindowService& service) {
      return service.open(window_, deadline_after(timeout_s))->id();
    });
  }

  void remove() {
    engine_.use().with_windows([&](WindowService& service) {
      service.remove(*window_);
      return true;
    });
  }

  void release_removed() {
    engine_.use().with_windows([&](WindowService& service) {
      service.release_removed();
      return true;
    });
  }

  void connect(std::uintptr_t own, const std::vector<int>& sources,
               const std::vector<int>& targets) {
    Engine& engine = engine_.use();
    const std::vector<int> added =
        window_->add_in_edges(sources, memory_at(own, window_->config().nbytes));
    engine.with_windows([&](WindowService& service) {
      service.connect(window_, added, targets);
      return true;
    });
  }

  bool is_busy() {
    return engine_.use().with_windows(
        [&](WindowService& service) { return service.is_busy(*window_); });
  }

  bool has_lost(int rank) {
    return engine_.use().with_windows(
        [&](WindowService& service) { return service.has_lost(rank); });
  }

  RequestId put(std::uintptr_t address, Window::Weights targets, bool accumulates,
                bool with_p, bool is_sum, std::vector<int> summed, double timeout_s,
                bool blocking, RequestId id) {
    const WindowPut call{memory_at(address, window_->config().nbytes),
                         std::move(targets),
                         accumulates,
                         with_p,
                         0.0,
                         is_sum,
                         std::move(summed)};
    return bluecomm::put(engine_.use(), window_, call, deadline_after(timeout_s),
                         blocking, id);
  }

  RequestId get(Window::Weights sources, bool with_p, double timeout_s, bool blocking,
                RequestId id) {
    return bluecomm::get(engine_.use(), window_, {std::move(sources), with_p},
                         deadline_after(timeout_s), blocking, id);
  }

  RequestId lock(int owner, double timeout_s) {
    return engine_.use().with_windows(
        [&](WindowService& service) {
          return service.lock(window_, owner, deadline_after(timeout_s))->id();
        },
        Engine::Caller::kWaits);
  }

  void unlock(int owner, RequestId request) {
    engine_.use().with_windows([&](WindowService& service) {
      service.unlock(window_, owner, request);
      return true;
    });
  }

  void update(std::uintptr_t result, std::uintptr_t own, double self_weight,
              Window::Weights weights, bool resets, bool with_p, bool keeps,
              bool takes) {
    const std::size_t nbytes = window_->config().nbytes;
    bluecomm::update(engine_.use(), window_, memory_at(result, nbytes),
                     memory_at(own, nbytes),
                     {self_weight, std::move(weights), resets, with_p, keeps, takes});
  }

  bool publish_sum(int target, std::uint64_t word, std::uint32_t slot, double weight,
                   bool with_p) {
    static_cast<void>(engine_.use());
    return window_->publish_sum(target, {word, slot},
                                {with_p ? weight * window_->p() : 0.0, with_p});
  }

  void publish(std::uintptr_t own) {
    static_cast<void>(engine_.use());
    window_->publish(memory_at(own, window_->config().nbytes));
  }

 private:
  PyEngine& engine_;
  const std::shared_ptr<Window> window_;
};

std::unique_ptr<PyWindow> make_window(PyEngine& engine, std::uint64_t id,
                                      std::string name, int rank,
                                      std::string_view dtype, std::uintptr_t address,
                                      std::size_t nbytes, std::vector<int> in_neighbors,
                                      std::vector<int> out_neighbors, bool zero_init,
                                      int ranks, std::size_t nbytes_on_device,
                                      const std::shared_ptr<SharedMemory>& memory) {
  WindowConfig config{id,
                      std::move(name),
                      rank,
                      parse_dtype(dtype),
                      nbytes,
                      std::move(in_neighbors),
                      std::move(out_neighbors),
                      zero_init,
                      ranks,
                      nbytes_on_device};
  const ReleaseGil unlocked;
  return std::make_unique<PyWindow>(engine, std::move(config), address, memory);
}

RequestId open(PyWindow& self, double timeout_s, py::dict kept,
               const py::object& keep) {
  return keep_blocking(kept, keep, [&] { return self.open(timeout_s); });
}

// Starts a put or a get, and keeps what it uses.
template <typename Start>
RequestId exchange(PyWindow& self, bool blocking, py::dict& kept,
                   const py::object& keep, Start&& start) {
  if (blocking) return keep_blocking(kept, keep, [&] { return start(0); });
  return keep_nonblocking(kept, keep, self.next_request_id(), start);
}

RequestId put(PyWindow& self, std::uintptr_t address, Window::Weights targets,
              bool accumulates, bool with_p, double timeout_s, bool blocking,
              py::dict kept, const py::object& keep, bool is_sum,
              std::vector<int> summed) {
  return exchange(self, blocking, kept, keep, [&](RequestId id) {
    return self.put(address, std::move(targets), accumulates, with_p, is_sum,
                    std::move(summed), timeout_s, blocking, id);
  });
}

RequestId get(PyWindow& self, Window::Weights sources, bool with_p, double timeout_s,
              bool blocking, py::dict kept, const py::object& keep) {
  return exchange(self, blocking, kept, keep, [&](RequestId id) {
    return self.get(std::move(sources), with_p, timeout_s, blocking, id);
  });
}

// Appends the id to the list `keep`, too, because the caller has to unlock the mutex
// even if a signal handler raises immediately.
RequestId lock(PyWindow& self, int owner, double timeout_s, py::dict kept,
               py::list keep) {
  const RequestId id =
      keep_blocking(kept, keep, [&] { return self.lock(owner, timeout_s); });
  keep.append(id);
  return id;
}

// Returns whether a publication adds to the value; nothing if there is none.
std::optional<bool> adds(MailboxReader::Publication publication) {
  if (publication == MailboxReader::Publication::kNone) return std::nullopt;
  return publication == MailboxReader::Publication::kAdd;
}

// Calls `method` of the window without the GIL.
template <typename Result, typename... Args>
auto unlocked(Result (PyWindow::*method)(Args...)) {
  return [method](PyWindow& self, Args... args) {
    const ReleaseGil unlocked;
    return (self.*method)(std::forward<Args>(args)...);
  };
}

}  // namespace

void register_window(py::module_& module) {
  using py::arg;
  py::class_<PyWindow>(module, "Window")
      .def(py::init(&make_window), arg("engine"), py::kw_only(), arg("id"), arg("name"),
           arg("rank"), arg("dtype"), arg("address"), arg("nbytes"),
           arg("in_neighbors"), arg("out_neighbors"), arg("zero_init"),
           arg("ranks") = 0, arg("nbytes_on_device") = 0, arg("memory"),
           py::keep_alive<1, 2>())
      .def("open", &open, arg("timeout_s"), arg("kept"), arg("keep"))
      .def("remove", unlocked(&PyWindow::remove))
      .def("release_removed", unlocked(&PyWindow::release_removed))
      .def("connect", unlocked(&PyWindow::connect), arg("address"), arg("sources"),
           arg("targets"))
      .def("sources", [](PyWindow& self) { return self.window().sources(); })
      .def("targets", [](PyWindow& self) { return self.window().targets(); })
      .def_property_readonly("is_busy", unlocked(&PyWindow::is_busy))
      .def("put", &put, arg("address"), arg("targets"), arg("accumulates"),
           arg("with_p"), arg("timeout_s"), arg("blocking"), arg("kept"), arg("keep"),
           arg("is_sum") = false, arg("summed") = std::vector<int>())
      .def("shares_mailbox",
           [](PyWindow& self, int rank) { return self.window().shares_mailbox(rank); })
      .def("was_published",
           [](PyWindow& self, int rank) { return self.window().was_published(rank); })
      .def("get", &get, arg("sources"), arg("with_p"), arg("timeout_s"),
           arg("blocking"), arg("kept"), arg("keep"))
      .def("lock", &lock, arg("owner"), arg("timeout_s"), arg("kept"), arg("keep"))
      .def("unlock", unlocked(&PyWindow::unlock), arg("owner"), arg("request"))
      .def("update", unlocked(&PyWindow::update), arg("result"), arg("own"),
           arg("self_weight"), arg("weights"), arg("resets"), arg("with_p"),
           arg("keeps"), arg("takes") = true)
      .def("back_slot",
           [](PyWindow& self, int rank) { return self.window().back_slot(rank); })
      .def("pending",
           [](PyWindow& self,
              int rank) -> std::optional<std::pair<std::uint64_t, std::uint32_t>> {
             const auto pending = self.window().pending(rank);
             if (!pending) return std::nullopt;
             return std::pair(pending->word, pending->slot);
           })
      .def("publish_sum", unlocked(&PyWindow::publish_sum), arg("target"), arg("word"),
           arg("slot"), arg("weight"), arg("with_p"))
      .def("begin_get",
           [](PyWindow& self, int rank) { return self.window().begin_get(rank); })
      .def("next_adds",
           [](PyWindow& self, int rank) { return adds(self.window().next(rank)); })
      .def(
          "set_signal",
          [](PyWindow& self, int rank, std::uint64_t signal) {
            self.window().set_signal(rank, signal);
          },
          arg("rank"), arg("signal"))
      .def("next_signal",
           [](PyWindow& self, int rank) { return self.window().next_signal(rank); })
      .def("has_lost", unlocked(&PyWindow::has_lost), arg("rank"))
      .def("take",
           [](PyWindow& self, int rank) {
             const auto [publication, slot] = self.window().take(rank);
             return std::pair(adds(publication), slot);
           })
      .def("reserve", [](PyWindow& self) { return self.window().reserve(); })
      .def("publish", unlocked(&PyWindow::publish), arg("own"))
      .def_property_readonly("p", [](PyWindow& self) { return self.window().p(); })
      .def(
          "scale_p",
          [](PyWindow& self, double factor) { self.window().scale_p(factor); },
          arg("factor"))
      .def("versions", [](PyWindow& self) { return self.window().versions(); });
}

}  // namespace bluecomm::bindings
