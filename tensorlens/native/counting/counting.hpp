// Exports of every counting allocator to Python: figures, births, recordings, live blocks. A native
// part that taps an allocator includes this file once and adds the code that taps it.
//
// Nothing here is ever destroyed: blocks are freed as late as in static destruction, after the
// interpreter has ended.

#pragma once

#include "operator_hooks.hpp"
#include "recorder_columns.hpp"
#include "resident.hpp"
#include "scope_capsule.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

#include <pthread.h>

// Names of CPython's stable ABI, declared here as Python.h is a package of its own on many
// machines.
struct MethodDefinition {  // PyMethodDef
  const char* name;
  PyObject* (*function)(PyObject*, PyObject*);
  int flags;
  const char* doc;
};
constexpr int kMethodWithoutArguments = 0x0004;  // METH_NOARGS
extern "C" PyObject* PyCFunction_NewEx(MethodDefinition*, PyObject*, PyObject*);
extern "C" PyObject* PyTuple_New(ssize_t);
extern "C" int PyTuple_SetItem(PyObject*, ssize_t, PyObject*);

namespace {

bool take_in(const void* data, int64_t size) {
  if (g_recording.load(std::memory_order_relaxed)) {
    return record_in(data, size);
  }
  int64_t replaced;
  return count_in(data, size, origin_here(), &replaced);
}

void take_out(const void* data) {
  if (g_recording.load(std::memory_order_relaxed)) {
    record_out(data);
  } else {
    count_out(data);
  }
}

// A fork copies one thread only. All locks are held across it, so that no table is half written in
// the child.

void before_fork() {
  lock_births();
  for (SpinLock* const lock : kEventLocks) {
    lock->lock();
  }
  lock_blocks();
}

void after_fork() {
  unlock_blocks();
  for (SpinLock* const lock : kEventLocks) {
    lock->unlock();
  }
  unlock_births();
}

void after_fork_in_child() {
  after_fork();
  stop_in_child();
  g_ask_again.store(0, std::memory_order_relaxed);
}

// The object behind a capsule that Python holds and that has not ended.
template <typename Kept>
Kept* held_as(PyObject* held) {
  return reinterpret_cast<Kept*>(scope_of(held)->token);
}

// Must be called once, when the allocator is tapped.
void begin_counting() {
  pthread_atfork(&before_fork, &after_fork, &after_fork_in_child);
}

}  // namespace

// Sets allocated, peak since the last call by anyone, and the resident set (see resident.hpp), in
// bytes.
TL_EXPORT void tl_read(int64_t* figures) {
  const int64_t allocated = g_allocated.load(std::memory_order_relaxed);
  const int64_t peak = g_peak.exchange(allocated, std::memory_order_relaxed);
  // memory that another thread got in between belongs to the new interval too
  raise_peak(g_allocated.load(std::memory_order_relaxed));
  figures[0] = allocated;
  figures[1] = peak > allocated ? peak : allocated;
  figures[2] = recent_resident();
}

static PyObject* read_as_tuple(PyObject*, PyObject*) {
  int64_t figures[3];
  tl_read(figures);
  PyObject* result = PyTuple_New(3);
  if (result != nullptr) {
    for (ssize_t index = 0; index < 3; ++index) {
      PyTuple_SetItem(result, index, PyLong_FromLongLong(figures[index]));
    }
  }
  return result;
}

// Returns tl_read as a builtin without arguments. A call takes a third of a microsecond less than
// through ctypes, and needs no buffer, so that threads may share it.
TL_EXPORT PyObject* tl_make_reader() {
  // the builtin refers to it, and may outlive all else at the interpreter's exit
  static MethodDefinition definition = {"read", read_as_tuple, kMethodWithoutArguments, nullptr};
  return PyCFunction_NewEx(&definition, nullptr, nullptr);
}

TL_EXPORT int64_t tl_allocated() {
  return g_allocated.load(std::memory_order_relaxed);
}

TL_EXPORT int64_t tl_sizes(const uint64_t* addresses, int64_t length, int64_t* sizes) {
  return sizes_at(addresses, length, sizes);
}

// Sets the numbers of each block's user line and model line.
TL_EXPORT void tl_births(
    const uint64_t* addresses, int64_t length, int32_t* lines, int32_t* models) {
  for (int64_t index = 0; index < length; ++index) {
    const Birth birth = birth_of(static_cast<uintptr_t>(addresses[index]));
    lines[index] = birth.line;
    models[index] = birth.model;
  }
}

// Recording. `code` belongs to the function that calls modules, and is kept alive by the caller;
// with null modules are not noted.
TL_EXPORT void tl_module_call(PyObject* code) {
  g_module_call.store(reinterpret_cast<uintptr_t>(code), std::memory_order_relaxed);
}

TL_EXPORT OperatorHooks* tl_hooks() {
  static OperatorHooks hooks = {
      &op_begins, &op_ends, &node_begins, &node_ends, &gradient_known, nullptr};
  return &hooks;
}

TL_EXPORT void tl_hooks_connected() {
  g_peek_sequence_number.store(tl_hooks()->peek_sequence_number);
}

// Returns a recording as a capsule (see scope_capsule.hpp), or a number if there is no memory.
TL_EXPORT PyObject* tl_record_begin(int64_t limit) {
  try {
    return scope_capsule(reinterpret_cast<int64_t>(begin_span(limit)), [](int64_t token) {
      auto* const span = reinterpret_cast<Span*>(token);
      {
        const Holding holding(g_log.lock);
        end_span(*span);
      }
      delete span;
      return int64_t{0};
    });
  } catch (const std::bad_alloc&) {
    return no_scope();
  }
}

TL_EXPORT int tl_is_recording() {
  return g_recording.load(std::memory_order_relaxed);
}

// Returns the rows so far of a running recording as a capsule, or a number if there is no memory.
TL_EXPORT PyObject* tl_record_read(PyObject* held) {
  try {
    Readout* const read = read_span(*held_as<Span>(held));
    return scope_capsule(reinterpret_cast<int64_t>(read), [](int64_t token) {
      delete reinterpret_cast<Readout*>(token);
      return int64_t{0};
    });
  } catch (const std::bad_alloc&) {
    return no_scope();
  }
}

// Sets the columns of the rows (`which` is 0), or of the blocks resident at the peak of the dropped
// events (1). Sets the figures to the counts of rows, dropped events and lost stacks, and the bytes
// of unlisted blocks.
TL_EXPORT void tl_record_look(PyObject* read, int which, const void** columns, int64_t* figures) {
  const auto* const readout = held_as<Readout>(read);
  const Rows& rows = which == 0 ? readout->rows : readout->dropped;
  const void* all[] = {
      rows.kind.data(), rows.address.data(), rows.size.data(), rows.time.data(),
      rows.stack.data(), rows.context.data(), rows.birth.data(), rows.pair.data(),
      rows.owner.data()};
  std::copy(std::begin(all), std::end(all), columns);
  figures[0] = static_cast<int64_t>(rows.kind.size());
  figures[1] = readout->lost;
  figures[2] = g_lost_stacks.load(std::memory_order_relaxed);
  figures[3] = readout->unlisted;
}

// Has `namer` called on the main thread when backward begins (see pending_names.hpp). The caller
// keeps it alive for good.
TL_EXPORT void tl_name_at_backward(PyObject* namer) {
  g_modules_named.store(0, std::memory_order_relaxed);
  g_passes.store(0, std::memory_order_relaxed);
  g_namer.store(namer, std::memory_order_relaxed);
}

// The tables behind the numbers in rows. They only grow: what was read stays valid.
// Sets line and module of each frame, innermost first.
TL_EXPORT int64_t tl_stack(int32_t number, int64_t* length, StackFrame* frames, int64_t limit) {
  const Holding holding(g_stacks.lock);
  const StackNode* node = g_stacks.find(number);
  const bool found = node != nullptr;
  for (*length = 0; node != nullptr && *length < limit; node = g_stacks.find(node->outer)) {
    frames[(*length)++] = node->frame;
  }
  return found;
}

TL_EXPORT int tl_context(int32_t number, int32_t* key) {
  const Holding holding(g_contexts.lock);
  const ContextKey* const found = g_contexts.find(number);
  if (found != nullptr) {
    std::memcpy(key, found, sizeof(ContextKey));
  }
  return found != nullptr;
}

TL_EXPORT const char* tl_op_name(int32_t number) {
  const std::string* const text = g_op_names.text(number);
  return text == nullptr ? nullptr : text->c_str();
}

// Returns the address of a module that was met, and sets its type's name.
TL_EXPORT uint64_t tl_module(int32_t number, const char** type) {
  const Holding holding(g_modules.lock);
  if (number < 0 || static_cast<size_t>(number) >= g_modules.met().size()) {
    return 0;
  }
  *type = g_modules.met()[number].name.c_str();
  return g_modules.met()[number].address;
}

// The number of the calling thread in contexts.
TL_EXPORT int32_t tl_thread() {
  return running().thread - 1;
}

// Notes that the running line calls a graph function; returns a scope for tl_end().
TL_EXPORT PyObject* tl_call_begins(const char* function) {
  try {
    const Captured at = g_recording.load(std::memory_order_relaxed)
        ? capture() : Captured{kNoStack, birth_here()};
    return scope_capsule(g_calls.begin(g_op_names.number(function), at), [](int64_t token) {
      g_calls.end(token);
      return int64_t{0};
    });
  } catch (const std::bad_alloc&) {
    return no_scope();
  }
}

TL_EXPORT int64_t tl_end(PyObject* held) {
  return end_scope(held);
}

TL_EXPORT void tl_set_era(int32_t era) {
  g_era.store(era, std::memory_order_relaxed);
}

TL_EXPORT Columns* tl_living(int32_t since) {
  return list_living(since);
}

TL_EXPORT Columns* tl_totals() {
  return sum_by_birth();
}
