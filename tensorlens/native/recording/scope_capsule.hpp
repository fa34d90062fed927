// A Python capsule for something that has begun, such as a recording. It ends once: by end_scope(),
// or when the capsule is collected. Its end runs no Python code, in which an exception of a signal
// handler could be lost.

#pragma once

#include "frames.hpp"

#include <cstdint>
#include <new>
#include <utility>

extern "C" PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
extern "C" void* PyCapsule_GetPointer(PyObject*, const char*);
extern "C" PyObject* PyLong_FromLongLong(long long);
extern "C" void PyErr_Clear();

namespace {

constexpr char kCapsuleName[] = "tensorlens.scope";

struct Scope {
  int64_t token;
  int64_t (*end)(int64_t token);
};

int64_t end_once(Scope& scope) {
  const auto end = std::exchange(scope.end, nullptr);
  return end == nullptr ? 0 : end(scope.token);
}

Scope* scope_of(PyObject* capsule) {
  return static_cast<Scope*>(PyCapsule_GetPointer(capsule, kCapsuleName));
}

void destroy_capsule(PyObject* capsule) {
  auto* const scope = scope_of(capsule);
  end_once(*scope);
  delete scope;
}

// The value for a scope that never began.
PyObject* no_scope() {
  return PyLong_FromLongLong(0);
}

// Ends the scope at once if there is no memory for a capsule.
PyObject* scope_capsule(int64_t token, int64_t (*end)(int64_t)) {
  auto* const scope = new (std::nothrow) Scope{token, end};
  PyObject* const capsule =
      scope == nullptr ? nullptr : PyCapsule_New(scope, kCapsuleName, destroy_capsule);
  if (capsule == nullptr) {
    PyErr_Clear();
    delete scope;
    end(token);
    return no_scope();
  }
  return capsule;
}

// Returns the result of the scope's end; 0 if it had ended before.
int64_t end_scope(PyObject* capsule) {
  auto* const scope = scope_of(capsule);
  if (scope == nullptr) {
    PyErr_Clear();
    return 0;
  }
  return end_once(*scope);
}

}  // namespace
