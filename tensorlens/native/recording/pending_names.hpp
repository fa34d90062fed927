// Has Python take a census for names when backward begins: the model and all that the forward pass
// kept are alive then. It does so in passes 1, 2, 4, 8, ..., and whenever new modules were met.
//
// Python is not called from here, where the GIL is not held: the interpreter makes a pending call
// between two instructions of the main thread.

#pragma once

#include "stacks.hpp"

extern "C" int Py_AddPendingCall(int (*)(void*), void*);
extern "C" PyObject* PyObject_CallNoArgs(PyObject*);

namespace {

// whoever sets it keeps it alive for good
std::atomic<PyObject*> g_namer{nullptr};
// modules met when names were last asked for
std::atomic<int64_t> g_modules_named{0};
std::atomic<int64_t> g_passes{0};

int call_namer(void*) {
  PyObject* const namer = g_namer.load(std::memory_order_relaxed);
  if (namer == nullptr) {
    return 0;
  }
  PyObject* const result = PyObject_CallNoArgs(namer);
  if (result == nullptr) {
    // such as Ctrl-C: the program gets it
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

// Called when a backward pass begins, if that is noticed.
void backward_begins() {
  const int64_t passes = 1 + g_passes.fetch_add(1, std::memory_order_relaxed);
  const bool more = met_more_modules();
  if (more || (passes & (passes - 1)) == 0) {
    ask_for_names();
  }
}

// Called when a node of a backward pass begins.
void backward_runs() {
  if (met_more_modules()) {
    ask_for_names();
  }
}

}  // namespace
