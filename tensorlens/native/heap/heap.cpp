// Reads the Python heap: the objects of given types, and the paths of holders from the roots of
// names to some objects. It runs no Python code and keeps no references except in its results.

#include "exported.hpp"
#include "shortest_paths.h"

#include <memory>
#include <new>

// Sets the layout of objects; called once, before anything else.
TL_EXPORT void tl_heap_setup(
    int64_t minor, int64_t tuple_items, int64_t cached_keys, int64_t dicts_show_values,
    PyObject* transparent) {
  g_layout = Layout{minor, tuple_items, cached_keys, dicts_show_values, {}};
  for (int index = 0; index < 3; ++index) {
    g_layout.transparent[index] = PyTuple_GetItem(transparent, index);
  }
}

// Returns the offset of a name of offsets.h that Python checks; -1 if there is none.
TL_EXPORT int64_t tl_heap_offset(const char* name) { return offsets::by_name(name); }

TL_EXPORT uint64_t tl_heap_dict_of(PyObject* object) {
  return reinterpret_cast<uint64_t>(dict_of(object, describe(type_of(object))));
}

TL_EXPORT uint64_t tl_heap_inline_name(PyObject* object, PyObject* child) {
  return reinterpret_cast<uint64_t>(inline_name(object, describe(type_of(object)), child));
}

// Returns the number of items before the first tuple.
static ssize_t put_tuples_last(PyObject* objects) {
  auto** const items = const_cast<PyObject**>(list_items(objects));
  return std::stable_partition(items, items + size_of(objects), [](PyObject* item) {
    return type_of(item) != &PyTuple_Type;
  }) - items;
}

// Returns the heap's objects without the tuples: another thread may be making one, and fails if
// somebody else holds it. `fetch` is gc.get_objects.
TL_EXPORT PyObject* tl_heap_objects(PyObject* fetch) {
  PyObject* const objects = PyObject_CallNoArgs(fetch);
  if (objects == nullptr) {
    return nullptr;
  }
  const ssize_t count = size_of(objects), kept = put_tuples_last(objects);
  if (PyList_SetSlice(objects, kept, count, nullptr) != 0) {
    Py_DecRef(objects);
    return nullptr;
  }
  return objects;
}

// Appends objects whose type derives from one of `kinds` (63 at most) to the list of that kind,
// and those whose type is one of `exact` to the last list. Returns -1 if out of memory.
TL_EXPORT int tl_heap_select(
    PyObject* objects, PyObject* kinds, PyObject* exact, PyObject* lists) {
  struct Known {
    PyTypeObject* type = nullptr;
    uint64_t kinds = 0;
  };
  Known cache[1024];
  std::unordered_set<PyTypeObject*> exactly;
  for (ssize_t index = 0; index < PyTuple_Size(exact); ++index) {
    exactly.insert(reinterpret_cast<PyTypeObject*>(PyTuple_GetItem(exact, index)));
  }
  const ssize_t count = size_of(objects), wanted = PyTuple_Size(kinds);
  PyObject* const* items = list_items(objects);
  for (ssize_t index = 0; index < count; ++index) {
    if (index + 16 < count) {
      __builtin_prefetch(reinterpret_cast<const char*>(items[index + 16]) + 8);
    }
    PyTypeObject* type = type_of(items[index]);
    Known& known = cache[hash_address(reinterpret_cast<uintptr_t>(type)) >> 54];
    if (known.type != type) {
      known = Known{type, static_cast<uint64_t>(exactly.count(type)) << wanted};
      for (ssize_t kind = 0; kind < wanted; ++kind) {
        auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GetItem(kinds, kind));
        known.kinds |= static_cast<uint64_t>(PyType_IsSubtype(type, base) != 0) << kind;
      }
    }
    for (uint64_t left = known.kinds; left != 0; left &= left - 1) {
      if (PyList_Append(PyTuple_GetItem(lists, __builtin_ctzll(left)), items[index]) != 0) {
        return -1;
      }
    }
  }
  return 0;
}

// Returns the rows found, to be read by tl_heap_read and released by tl_heap_release; null if out
// of memory. `lengths` are those of targets and anchors.
TL_EXPORT Rows* tl_heap_search(
    PyObject* objects, const uint64_t* targets, const uint64_t* anchors, const int8_t* origins,
    const int64_t* lengths, int64_t first_text, PyObject* fetch, PyObject* keys,
    PyObject* tuples) {
  try {
    auto rows = std::make_unique<Rows>();
    Search search(objects, static_cast<size_t>(lengths[0]), first_text, fetch);
    std::for_each(targets, targets + lengths[0], [&](uint64_t a) { search.target(a); });
    for (int64_t index = 0; index < lengths[1]; ++index) {
      search.anchor(anchors[index], static_cast<Origin>(origins[index]));
    }
    search.run();
    search.write(*rows);
    for (PyObject* key : rows->keys) {
      if (PyList_Append(keys, key) != 0) {
        return nullptr;
      }
    }
    // tuples on the paths to targets, which the caller does not hold yet
    for (size_t row = 0; row < rows->how.size(); ++row) {
      auto* const object = reinterpret_cast<PyObject*>(rows->address[row]);
      if (type_of(object) == &PyTuple_Type &&
          (rows->holder[row] >= 0 || rows->value[row] != kTemporary) &&
          PyList_Append(tuples, object) != 0) {
        return nullptr;
      }
    }
    return rows.release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

TL_EXPORT int64_t tl_heap_length(const Rows* rows) {
  return static_cast<int64_t>(rows->how.size());
}

TL_EXPORT void tl_heap_read(
    const Rows* rows, int32_t* holder, int8_t* how, int64_t* value, uint64_t* address,
    int8_t* written, int32_t* targets) {
  std::copy(rows->holder.begin(), rows->holder.end(), holder);
  std::copy(rows->how.begin(), rows->how.end(), how);
  std::copy(rows->value.begin(), rows->value.end(), value);
  std::copy(rows->address.begin(), rows->address.end(), address);
  std::copy(rows->written.begin(), rows->written.end(), written);
  std::copy(rows->targets.begin(), rows->targets.end(), targets);
}

TL_EXPORT void tl_heap_release(Rows* rows) {
  delete rows;
}

// Appends six items to `references` for each holder of each object: the holder, or its length if it
// is a tuple; the addresses of the holder and of the object; the number of references between them;
// of the first of these the How, and an index or a key. Appends two to `searched` for each object
// whose holders were searched: its address, and whether they are fewer than kMaxHolders. `lengths`
// are those of targets and anchors. Returns -1 if out of memory. `fetch` is gc.get_objects.
TL_EXPORT int tl_heap_references(
    const uint64_t* targets, const uint64_t* anchors, const int64_t* lengths, PyObject* fetch,
    PyObject* references, PyObject* searched) {
  PyObject* const objects = PyObject_CallNoArgs(fetch);
  if (objects == nullptr) {
    return -1;
  }
  bool is_done = false;
  try {
    put_tuples_last(objects);
    Search search(objects, kMaxSearched * kMaxHolders, 0, fetch);
    std::for_each(targets, targets + lengths[0], [&](uint64_t each) { search.target(each); });
    std::for_each(anchors, anchors + lengths[1], [&](uint64_t each) { search.anchor(each, kEnd); });
    search.find_references();
    is_done = search.append_references(references, searched);
  } catch (const std::bad_alloc&) {
  }
  Py_DecRef(objects);
  return is_done ? 0 : -1;
}

// Writes the nodes of names for `count` rows and returns their number. The parent of a row's node
// is its holder's node; an alias (kind -1) shares its holder's. `numbers` receives each row's node,
// `nodes` each target's.
TL_EXPORT int64_t tl_heap_assemble(
    int64_t count, int64_t first, const int32_t* holder, const int8_t* kind, const int64_t* value,
    int32_t* numbers, int32_t* parents, int8_t* kinds, int64_t* values, const int32_t* targets,
    int64_t target_count, int32_t* nodes) {
  int64_t node_count = 0;
  for (int64_t row = 0; row < count; ++row) {
    const int32_t parent = holder[row] < 0 ? -1 : numbers[holder[row]];
    if (kind[row] == -1) {
      numbers[row] = parent;
      continue;
    }
    parents[node_count] = parent;
    kinds[node_count] = kind[row];
    values[node_count] = value[row];
    numbers[row] = static_cast<int32_t>(first + node_count++);
  }
  for (int64_t target = 0; target < target_count; ++target) {
    nodes[target] = targets[target] < 0 ? -1 : numbers[targets[target]];
  }
  return node_count;
}

// Writes the addresses in a frame's variables and evaluation stack (`count` words), whether each is
// borrowed, and for the first `variables` that are cells, their content. Returns 0 if the frame
// does not have the expected layout.
TL_EXPORT int tl_heap_frame(
    PyObject* frame, PyObject* code, int64_t variables, int64_t count,
    uint64_t* words, uint8_t* borrowed, uint64_t* contents) {
  const char* raw = at<const char*>(frame, offsets::kFrameData);
  if (raw == nullptr) {
    return 0;
  }
  const bool eleven = g_layout.minor == 11;
  // the data of a frame that outlives its call have no frame object
  const auto object = at<PyObject*>(raw, eleven ? offsets::kFrameObject11 : offsets::kFrameObject);
  const auto running = at<uintptr_t>(raw, eleven ? offsets::kFrameCode11 : offsets::kFrameCode);
  const bool is_of_code = (running & ~offsets::kFrameTags) == reinterpret_cast<uintptr_t>(code);
  if (!is_of_code || (object != nullptr && object != frame)) {
    return 0;
  }
  const ssize_t slots = g_layout.minor < 14 ? offsets::kFrameSlots13 : offsets::kFrameSlots;
  for (int64_t index = 0; index < count; ++index) {
    const auto word = at<uint64_t>(raw, slots + 8 * index);
    const auto tag = word & offsets::kFrameTags;
    borrowed[index] = tag == offsets::kBorrowed;
    // other tags are no references
    words[index] = tag <= offsets::kBorrowed ? word - tag : 0;
  }
  for (int64_t index = 0; index < variables; ++index) {
    auto* value = reinterpret_cast<PyObject*>(words[index]);
    const bool is_cell = value != nullptr && type_of(value) == &PyCell_Type;
    contents[index] = is_cell ? at<uint64_t>(value, offsets::kCellContent) : 0;
  }
  return 1;
}
