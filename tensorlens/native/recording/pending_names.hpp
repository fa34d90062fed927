// Asks Python for the names of what is there, at the moment that backward begins: all that the
// forward pass kept is alive then, and so is the model. It is asked at the first passes, then ever
// more seldom, and whenever modules were met that were not there before.
//
// Python is not called from here, where the GIL is not held: the interpreter calls it between two
// of its own instructions, on the main thread.

#pragma once

#include "stacks.hpp"

extern "C" int Py_AddPendingCall(int (*)(void*), void*);
extern "C" PyObject* PyObject_CallNoArgs(PyObject*);

namespace {

// kept alive for good by whoever sets it
std::atomic<PyObject*> g_namer{nullptr};
// how many modules had been met when names were asked for last
std::atomic<int64_t> g_modules_named{0};
std::atomic<int64_t> g_passes{0};

int call_namer(void*) {
  PyObject* const namer = g_namer.load(std::memory_order_relaxed);
  if (namer == nullptr) {
    return 0;
  }
  PyObject* const result = PyObject_CallNoArgs(namer);
  if (result == nullptr) {
    // Ctrl-C: it goes to the program
    return -1;
  }
  Py_DecRef(result);
  return 0;
}

void ask_for_names() {
  if (g_namer.load(std::memory_order_relaxed) != nullptr) {
    Py_AddPendingCall(&call_namer, nullptr);
  }
}

bool met_more_modules() {
  const int64_t met = g_modules.count();
  int64_t named = g_modules_named.load(std::memory_order_relaxed);
  return met > named && g_modules_named.compare_exchange_strong(named, met);
}

// A pass is about to begin; nothing is lost if nobody says so.
void backward_begins() {
  const int64_t passes = 1 + g_passes.fetch_add(1, std::memory_order_relaxed);
  const bool more = met_more_modules();
  if (more || (passes & (passes - 1)) == 0) {
    ask_for_names();
  }
}

void backward_runs() {
  if (met_more_modules()) {
    ask_for_names();
  }
}

}  // namespace
