// Walks what modules and optimizers hold, from the holder to the held: the dicts they keep their
// tensors in are read as dicts, and what is not made of plain dicts is left to Python.

#pragma once

#include "nodes.h"

#include <algorithm>

extern "C" int PyUnicode_CompareWithASCIIString(PyObject*, const char*);
extern "C" PyTypeObject PyFloat_Type;
extern "C" PyTypeObject PyBool_Type;
extern "C" PyObject _Py_NoneStruct;

namespace {

// These are spelled the same in names.py and walk.py.
constexpr int8_t kTextName = 0, kAttributeName = 3;
constexpr int8_t kInside = 1, kUnread = 2;

// Which types derive from one.
class Subtypes {
 public:
  explicit Subtypes(PyTypeObject* base) : base_(base) {}

  bool has(const void* object) {
    PyTypeObject* type = type_of(object);
    Known& known = near_[hash_of(reinterpret_cast<uintptr_t>(type)) >> 54];
    if (known.type != type) {
      known = Known{type, PyType_IsSubtype(type, base_) != 0};
    }
    return known.derives;
  }

 private:
  struct Known {
    PyTypeObject* type = nullptr;
    bool derives = false;
  };
  PyTypeObject* base_;
  Known near_[1024];
};

bool is_text(PyObject* object) { return type_of(object) == &PyUnicode_Type; }

bool spells(PyObject* key, const char* text) {
  return is_text(key) && size_of(key) == static_cast<ssize_t>(std::strlen(text)) &&
         PyUnicode_CompareWithASCIIString(key, text) == 0;
}

struct Registries {
  PyObject* parameters = nullptr;
  PyObject* buffers = nullptr;
  PyObject* modules = nullptr;
};

// Reads modules; what it cannot read without running code is unusual.
class Modules {
 public:
  explicit Modules(PyTypeObject* module) : modules_(module) {}

  bool is_dict(PyObject* object) { return types_.of(object).kind == kDict; }

  // False where the module is unusual.
  bool read(PyObject* module, Registries& found) {
    PyObject* content = modules_.has(module) ? dict_of(module, types_.of(module)) : nullptr;
    if (content == nullptr || type_of(content) != &PyDict_Type) {
      return false;
    }
    PyObject** places[] = {&found.modules, &found.parameters, &found.buffers};
    ssize_t position = 0;
    PyObject *key, *value;
    int left = 3;
    while (left > 0 && PyDict_Next(content, &position, &key, &value)) {
      for (int index = 0; index < 3; ++index) {
        if (key == g_layout.transparent[index]) {
          *places[index] = value;
          --left;
        }
      }
    }
    if (left > 0) {
      read_spelled(content, found);
    }
    return is_registry(found.parameters) && is_registry(found.buffers) &&
           is_registry(found.modules);
  }

 private:
  // A module that was unpickled may have keys of its own.
  void read_spelled(PyObject* content, Registries& found) {
    ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(content, &position, &key, &value)) {
      if (spells(key, "_parameters")) {
        found.parameters = value;
      } else if (spells(key, "_buffers")) {
        found.buffers = value;
      } else if (spells(key, "_modules")) {
        found.modules = value;
      }
    }
  }

  bool is_registry(PyObject*& registry) {
    if (registry == &_Py_NoneStruct) {
      registry = nullptr;
    }
    return registry == nullptr || is_dict(registry);
  }

  Subtypes modules_;
  Types types_;
};

// Calls `take(key, value)` for the entries of a registry whose key is a text.
template <class Take>
void each_entry(PyObject* registry, Take&& take) {
  ssize_t position = 0;
  PyObject *key, *value;
  while (registry != nullptr && PyDict_Next(registry, &position, &key, &value)) {
    if (is_text(key)) {
      take(key, value);
    }
  }
}

// New nodes of names, the tensors that were met with their names, and the modules.
struct Walk {
  Walk(int64_t first_node, int64_t first_text)
      : first_node(static_cast<int32_t>(first_node)), first_text(first_text), keys(64) {}

  int32_t node(int32_t parent, int8_t kind, int64_t value) {
    parents.push_back(parent);
    kinds.push_back(kind);
    values.push_back(value);
    return first_node + static_cast<int32_t>(parents.size()) - 1;
  }

  int32_t attribute(int32_t parent, PyObject* key) {
    return node(parent, kAttributeName, first_text + keys.add(key));
  }

  void give(PyObject* tensor, int32_t node, bool buffer) {
    tensors.push_back(tensor);
    nodes.push_back(node);
    buffers.push_back(buffer);
  }

  int32_t first_node;
  int64_t first_text;
  std::vector<int32_t> parents;
  std::vector<int8_t> kinds;
  std::vector<int64_t> values;
  Nodes keys;
  std::vector<PyObject*> tensors;
  std::vector<int32_t> nodes;
  std::vector<int8_t> buffers;  // whether each tensor is one
  std::vector<uint64_t> modules;
  std::vector<int32_t> paths;  // a module's node
  int64_t done = 0;            // roots
};

// Depth first, as named_parameters() goes: of tied weights the same name comes first.
class RegistryWalk {
 public:
  RegistryWalk(Walk& walk, PyTypeObject* module, PyTypeObject* tensor, int64_t most)
      : walk_(walk), modules_(module), tensors_(tensor), seen_(64), most_(most) {}

  // False where something unusual is below the root: nothing of it is kept.
  bool add(PyObject* root, int32_t prefix) {
    const size_t nodes = walk_.parents.size(), given = walk_.tensors.size();
    const size_t modules = walk_.modules.size();
    if (enter(root, prefix)) {
      return true;
    }
    walk_.parents.resize(nodes);
    walk_.kinds.resize(nodes);
    walk_.values.resize(nodes);
    walk_.tensors.resize(given);
    walk_.nodes.resize(given);
    walk_.buffers.resize(given);
    walk_.modules.resize(modules);
    walk_.paths.resize(modules);
    return false;
  }

 private:
  struct Place {
    PyObject* module;
    int32_t path;
    int32_t above;  // number among entered_
  };

  bool enter(PyObject* root, int32_t prefix) {
    entered_.clear();
    waiting_.assign(1, Place{root, prefix, -1});
    for (int64_t count = 0; count < most_ && !waiting_.empty(); ++count) {
      const Place place = waiting_.back();
      waiting_.pop_back();
      look_ahead();
      Registries found;
      if (!modules_.read(place.module, found)) {
        return false;
      }
      const size_t known = seen_.size();
      seen_.add(place.module);
      if (seen_.size() > known) {
        walk_.modules.push_back(reinterpret_cast<uint64_t>(place.module));
        walk_.paths.push_back(place.path);
      } else if (is_inside_itself(place)) {
        continue;
      }
      take(place, found);
    }
    return true;
  }

  void take(const Place& place, const Registries& found) {
    const auto give = [&](PyObject* registry, bool buffer) {
      each_entry(registry, [&](PyObject* key, PyObject* value) {
        if (tensors_.has(value)) {
          walk_.give(value, walk_.attribute(place.path, key), buffer);
        }
      });
    };
    give(found.parameters, false);
    give(found.buffers, true);
    const auto above = static_cast<int32_t>(entered_.size());
    entered_.push_back(place);
    const auto start = static_cast<ssize_t>(waiting_.size());
    each_entry(found.modules, [&](PyObject* key, PyObject* child) {
      if (child != &_Py_NoneStruct) {
        waiting_.push_back(Place{child, walk_.attribute(place.path, key), above});
      }
    });
    std::reverse(waiting_.begin() + start, waiting_.end());
  }

  // Most of the time goes into waiting for memory.
  void look_ahead() {
    const size_t left = waiting_.size();
    if (left > 16) {
      const char* far = reinterpret_cast<const char*>(waiting_[left - 16].module);
      __builtin_prefetch(far - 24);
      __builtin_prefetch(far + 8);
    }
  }

  bool is_inside_itself(const Place& place) const {
    for (int32_t above = place.above; above >= 0; above = entered_[above].above) {
      if (entered_[above].module == place.module) {
        return true;
      }
    }
    return false;
  }

  Walk& walk_;
  Modules modules_;
  Subtypes tensors_;
  Nodes seen_;
  int64_t most_;
  std::vector<Place> waiting_, entered_;
};

// The names there are: columns of nodes, and which node an object has been given first.
struct Known {
  const int32_t* parents;
  const int8_t* kinds;
  const int64_t* values;
  const uint64_t* addresses;
  const int32_t* nodes;
  int64_t count, given, no_text;
};

// Reads an optimizer's state of dicts of tensors and numbers.
class StateWalk {
 public:
  StateWalk(Walk& walk, const Known& known, PyTypeObject* tensor, int32_t prefix)
      : walk_(walk), known_(known), tensors_(tensor), prefix_(prefix),
        objects_(static_cast<size_t>(known.given)), copies_(static_cast<size_t>(known.count), -1) {
    for (int64_t index = 0; index < known.given; ++index) {
      const size_t before = objects_.size();
      objects_.add(pointer(known.addresses[index]));
      if (objects_.size() > before) {
        nodes_.push_back(known.nodes[index]);
      }
    }
  }

  // Whether each parameter of each group has a name.
  bool knows(PyObject* groups) {
    if (type_of(groups) != &PyList_Type) {
      return false;
    }
    for (ssize_t index = 0; index < size_of(groups); ++index) {
      PyObject* group = list_items(groups)[index];
      if (!is_dict(group)) {
        return false;
      }
      PyObject* members = nullptr;
      each_entry(group, [&](PyObject* key, PyObject* value) {
        members = spells(key, "params") ? value : members;
      });
      if (members == nullptr || type_of(members) != &PyList_Type) {
        return false;
      }
      for (ssize_t place = 0; place < size_of(members); ++place) {
        if (objects_.find(list_items(members)[place]) < 0) {
          return false;
        }
      }
    }
    return true;
  }

  // False where something unusual is met.
  bool add(PyObject* state) {
    if (!is_dict(state)) {
      return false;
    }
    ssize_t position = 0;
    PyObject *parameter, *slots;
    while (PyDict_Next(state, &position, &parameter, &slots)) {
      if (!tensors_.has(parameter) || !is_dict(slots)) {
        return false;
      }
      const int32_t number = objects_.find(parameter);
      if (!take(slots, number < 0 ? prefix_ : copy(nodes_[number]))) {
        return false;
      }
    }
    return true;
  }

 private:
  bool is_dict(PyObject* object) { return types_.of(object).kind == kDict; }

  bool take(PyObject* slots, int32_t node) {
    ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(slots, &position, &key, &value)) {
      const PyTypeObject* type = type_of(value);
      if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
          type == &PyUnicode_Type || value == &_Py_NoneStruct) {
        continue;
      }
      if (!is_text(key) || !tensors_.has(value)) {
        return false;
      }
      walk_.give(value, walk_.attribute(node, key), false);
    }
    return true;
  }

  // The same name below the optimizer's.
  int32_t copy(int32_t node) {
    way_.clear();
    for (; node >= 0 && copies_[node] < 0; node = known_.parents[node]) {
      way_.push_back(node);
    }
    int32_t last = node < 0 ? prefix_ : copies_[node];
    for (; !way_.empty(); way_.pop_back()) {
      const int32_t next = way_.back();
      const bool begins = known_.kinds[next] == kTextName;
      if (!begins || known_.values[next] != known_.no_text) {
        last = walk_.node(last, begins ? kAttributeName : known_.kinds[next], known_.values[next]);
      }
      copies_[next] = last;
    }
    return last;
  }

  Walk& walk_;
  const Known& known_;
  Subtypes tensors_;
  int32_t prefix_;
  Types types_;
  Nodes objects_;
  std::vector<int32_t> nodes_, copies_, way_;
};

}  // namespace
