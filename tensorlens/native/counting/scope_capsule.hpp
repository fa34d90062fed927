// What has begun for Python, and ends once: when Python says so, at the latest when nobody refers to
// it any more. No Python code runs then, in which what a signal's handler raises would be lost.

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

constexpr char kBegun[] = "tensorlens.begun";

struct Begun {
  int64_t token;
  int64_t (*end)(int64_t token);
};

int64_t end_once(Begun& begun) {
  const auto end = std::exchange(begun.end, nullptr);
  return end == nullptr ? 0 : end(begun.token);
}

Begun* begun_of(PyObject* held) {
  return static_cast<Begun*>(PyCapsule_GetPointer(held, kBegun));
}

void end_unreferenced(PyObject* capsule) {
  auto* const begun = begun_of(capsule);
  end_once(*begun);
  delete begun;
}

// What never began: it has no end.
PyObject* not_begun() {
  return PyLong_FromLongLong(0);
}

// Gives what Python holds. Where there is no memory for it, it ends at once.
PyObject* begun(int64_t token, int64_t (*end)(int64_t)) {
  auto* const made = new (std::nothrow) Begun{token, end};
  PyObject* const capsule =
      made == nullptr ? nullptr : PyCapsule_New(made, kBegun, end_unreferenced);
  if (capsule == nullptr) {
    PyErr_Clear();
    delete made;
    end(token);
    return not_begun();
  }
  return capsule;
}

// Gives what its end gives; 0 if it has ended before.
int64_t end_begun(PyObject* held) {
  auto* const begun = begun_of(held);
  if (begun == nullptr) {
    PyErr_Clear();
    return 0;
  }
  return end_once(*begun);
}

}  // namespace
