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
#include "bindings/py_engine.h"
#include "bindings/register.h"
#include "bindings/release_gil.h"
#include "common/shared_memory.h"
#include "engine/engine.h"

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

using Ticket = std::shared_ptr<WindowTicket>;

// One window of an engine, with the checks that Python callers need.
class PyWindow {
 public:
  PyWindow(PyEngine& engine, WindowConfig config, std::uintptr_t address,
           const std::shared_ptr<SharedMemory>& memory)
      : engine_(engine),
        window_(std::make_shared<Window>(
            std::move(config), memory_at(address, config.nbytes),
            [memory](std::size_t nbytes) {
              // Lives as long as the window uses it.
              auto block = std::make_shared<SharedBlock>(memory->allocate(nbytes));
              auto* const bytes = new std::span<std::byte>(block->bytes());
              return Window::Memory(bytes, [block](auto* span) { delete span; });
            })) {}

  Window& window() { return *window_; }

  Ticket open(double timeout_s) {
    return ask([&](WindowService& service) {
      return service.open(window_, deadline_after(timeout_s));
    });
  }

  void remove() {
    engine_.use().with_windows([&](WindowService& service) {
      service.remove(*window_);
      return true;
    });
  }

  Ticket put(std::uintptr_t address, const Window::Weights& targets, bool accumulates,
             bool with_p, double timeout_s, bool waits) {
    WindowAccount& account = engine_.use().window_account();
    const auto call =
        account.begin(accumulates ? WindowCall::kAccumulate : WindowCall::kPut,
                      window_->config().name);
    WindowService::Put put{memory_at(address, window_->config().nbytes),
                           {},
                           accumulates,
                           with_p,
                           with_p ? window_->p() : 0.0};
    for (const auto& [rank, weight] : targets) {
      const Window::Put one{put.x, weight, accumulates, {weight * put.p, with_p}};
      if (window_->put_directly(rank, one)) {
        account.exchanged(call, rank, WindowAccount::Way::kSent, put.x.size());
      } else {
        put.targets.emplace_back(rank, weight);
      }
    }
    return ask_others(
        call, targets.size(), put.targets.size(), waits, [&](WindowService& service) {
          return service.put(window_, put, deadline_after(timeout_s), call);
        });
  }

  Ticket get(const Window::Weights& sources, bool with_p, double timeout_s,
             bool waits) {
    WindowAccount& account = engine_.use().window_account();
    const auto call = account.begin(WindowCall::kGet, window_->config().name);
    Window::Weights others;
    for (const auto& [rank, weight] : sources) {
      if (window_->get_directly(rank, weight, with_p)) {
        account.exchanged(call, rank, WindowAccount::Way::kReceived,
                          window_->config().nbytes);
      } else {
        others.emplace_back(rank, weight);
      }
    }
    return ask_others(
        call, sources.size(), others.size(), waits, [&](WindowService& service) {
          return service.get(window_, others, with_p, deadline_after(timeout_s), call);
        });
  }

  Ticket lock(int owner, double timeout_s) {
    return ask(
        [&](WindowService& service) {
          return service.lock(window_, owner, deadline_after(timeout_s));
        },
        true);
  }

  void unlock(int owner, const Ticket& ticket) {
    engine_.use().with_windows([&](WindowService& service) {
      service.unlock(window_, owner, *ticket);
      return true;
    });
  }

  void update(std::uintptr_t result, std::uintptr_t own, double self_weight,
              Window::Weights weights, bool resets, bool with_p, bool keeps) {
    WindowAccount& account = engine_.use().window_account();
    const auto call = account.begin(WindowCall::kUpdate, window_->config().name);
    const std::size_t nbytes = window_->config().nbytes;
    window_->update(memory_at(result, nbytes), memory_at(own, nbytes),
                    {self_weight, std::move(weights), resets, with_p, keeps});
    account.moved(call, call.began);
    account.ended(call, Code::kOk);
  }

  void publish(std::uintptr_t own) {
    static_cast<void>(engine_.use());
    window_->publish(memory_at(own, window_->config().nbytes));
  }

  bool done(const Ticket& ticket) { return engine_.use().ticket_done(*ticket); }

  std::optional<Status> wait(const Ticket& ticket, double timeout_s) {
    std::optional<Status> status;
    {
      ReleaseGil unlocked;
      status =
          engine_.use().wait_ticket(*ticket, deadline_after(timeout_s),
                                    [&unlocked] { return unlocked.check_signals(); });
    }
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return status;
  }

 private:
  // Asks the `others` of `all` neighbors, with which there is no shared memory, for
  // their part of a call.
  template <typename Body>
  Ticket ask_others(const WindowAccount::Call& call, std::size_t all,
                    std::size_t others, bool waits, Body&& body) {
    WindowAccount& account = engine_.use().window_account();
    if (others < all) account.moved(call, call.began);
    if (others == 0) {
      account.ended(call, Code::kOk);
      return nullptr;
    }
    Ticket ticket = ask(std::forward<Body>(body), waits);
    account.submitted(call);
    return ticket;
  }

  template <typename Body>
  Ticket ask(Body&& body, bool waits = false) {
    return engine_.use().with_windows(
        std::forward<Body>(body),
        waits ? Engine::Caller::kWaits : Engine::Caller::kGoesOn);
  }

  PyEngine& engine_;
  const std::shared_ptr<Window> window_;
};

std::unique_ptr<PyWindow> make_window(PyEngine& engine, std::uint64_t id,
                                      std::string name, int rank,
                                      std::string_view dtype, std::uintptr_t address,
                                      std::size_t nbytes, std::vector<int> in_neighbors,
                                      std::vector<int> out_neighbors, bool zero_init,
                                      const std::shared_ptr<SharedMemory>& memory) {
  WindowConfig config{id,
                      std::move(name),
                      rank,
                      parse_dtype(dtype),
                      nbytes,
                      std::move(in_neighbors),
                      std::move(out_neighbors),
                      zero_init};
  const ReleaseGil unlocked;
  return std::make_unique<PyWindow>(engine, std::move(config), address, memory);
}

// What the request reads is in `kept` before a handler of signals can raise.
Ticket put(PyWindow& self, std::uintptr_t address, const Window::Weights& targets,
           bool accumulates, bool with_p, double timeout_s, bool waits, py::dict kept,
           const py::object& keep) {
  Ticket ticket;
  {
    const ReleaseGil unlocked;
    ticket = self.put(address, targets, accumulates, with_p, timeout_s, waits);
  }
  if (ticket) kept[py::cast(ticket)] = keep;
  return ticket;
}

// As put().
Ticket lock(PyWindow& self, int owner, double timeout_s, py::dict kept,
            const py::object& keep) {
  Ticket ticket;
  {
    const ReleaseGil unlocked;
    ticket = self.lock(owner, timeout_s);
  }
  kept[py::cast(ticket)] = keep;
  return ticket;
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
  py::class_<WindowTicket, Ticket>(module, "WindowTicket");

  py::class_<PyWindow>(module, "Window")
      .def(py::init(&make_window), arg("engine"), py::kw_only(), arg("id"), arg("name"),
           arg("rank"), arg("dtype"), arg("address"), arg("nbytes"),
           arg("in_neighbors"), arg("out_neighbors"), arg("zero_init"), arg("memory"),
           py::keep_alive<1, 2>())
      .def("open", unlocked(&PyWindow::open), arg("timeout_s"))
      .def("remove", unlocked(&PyWindow::remove))
      .def("put", &put, arg("address"), arg("targets"), arg("accumulates"),
           arg("with_p"), arg("timeout_s"), arg("waits"), arg("kept"), arg("keep"))
      .def("get", unlocked(&PyWindow::get), arg("sources"), arg("with_p"),
           arg("timeout_s"), arg("waits"))
      .def("lock", &lock, arg("owner"), arg("timeout_s"), arg("kept"), arg("keep"))
      .def("unlock", unlocked(&PyWindow::unlock), arg("owner"), arg("ticket"))
      .def("update", unlocked(&PyWindow::update), arg("result"), arg("own"),
           arg("self_weight"), arg("weights"), arg("resets"), arg("with_p"),
           arg("keeps"))
      .def("publish", unlocked(&PyWindow::publish), arg("own"))
      .def("done", unlocked(&PyWindow::done), arg("ticket"))
      .def("wait", &PyWindow::wait, arg("ticket"), arg("timeout_s"))
      .def_property_readonly("p", [](PyWindow& self) { return self.window().p(); })
      .def(
          "scale_p",
          [](PyWindow& self, double factor) { self.window().scale_p(factor); },
          arg("factor"))
      .def("versions", [](PyWindow& self) { return self.window().versions(); });
}

}  // namespace bluecomm::bindings
