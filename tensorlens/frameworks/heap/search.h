// Searches the heap backwards: from some objects to their holders, the holders' holders, and so on
// until every object has a way to where a name begins.

#pragma once

#include "layout.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <vector>

namespace {

struct Node {
  uintptr_t address = 0;
  int32_t into = -1, out = -1;  // lists of edges
  int32_t best = -1;            // the edge its name comes by
  int32_t row = -1;
  int16_t distance = -1;        // from where its name begins
  int16_t wanted = -1;          // the pass that looked for its holders
  Origin origin = kVariable;
  bool resolved = false, marked = false;
};

// Nodes by their address: open addressing with linear probing. A slot is small, since most of a
// search's time goes into waiting for it.
class Nodes : public std::vector<Node> {
 public:
  explicit Nodes(size_t expected) {
    reserve(expected);
    resize_slots(expected);
  }

  int32_t find(const void* object) const {
    const auto address = reinterpret_cast<uintptr_t>(object);
    const uint64_t hash = hash_of(address);
    for (size_t index = hash >> shift_; slots_[index].number >= 0; index = (index + 1) & mask_) {
      const Slot& slot = slots_[index];
      if (slot.tag == static_cast<uint32_t>(hash) && (*this)[slot.number].address == address) {
        return slot.number;
      }
    }
    return -1;
  }

  void prefetch(const void* object) const {
    __builtin_prefetch(&slots_[hash_of(reinterpret_cast<uintptr_t>(object)) >> shift_]);
  }

  int32_t add(const void* object) {
    int32_t number = find(object);
    if (number < 0) {
      number = static_cast<int32_t>(size());
      emplace_back();
      back().address = reinterpret_cast<uintptr_t>(object);
      if (2 * size() > mask_) {
        resize_slots(2 * size());
      } else {
        place(number);
      }
    }
    return number;
  }

 private:
  struct Slot {
    uint32_t tag = 0;
    int32_t number = -1;
  };

  void place(int32_t number) {
    const uint64_t hash = hash_of((*this)[number].address);
    size_t index = hash >> shift_;
    while (slots_[index].number >= 0) {
      index = (index + 1) & mask_;
    }
    slots_[index] = Slot{static_cast<uint32_t>(hash), number};
  }

  void resize_slots(size_t expected) {
    int bits = 6;
    while ((size_t{1} << bits) < 2 * expected + 2) {
      ++bits;
    }
    slots_.assign(size_t{1} << bits, Slot{});
    mask_ = slots_.size() - 1;
    shift_ = 64 - bits;
    for (size_t number = 0; number < size(); ++number) {
      place(static_cast<int32_t>(number));
    }
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 0;
};

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

struct Edge {
  int32_t holder, child;
  int32_t next_into, next_out;
  int64_t value;
  How how;
};

struct Rows {
  std::vector<int32_t> holder;
  std::vector<int8_t> how;
  std::vector<int64_t> value;
  std::vector<uint64_t> address;
  std::vector<int8_t> attribute;  // for each key
  std::vector<PyObject*> keys;
  std::vector<int32_t> targets;

  void reserve(size_t count) {
    holder.reserve(count);
    how.reserve(count);
    value.reserve(count);
    address.reserve(count);
  }
};

class Search {
 public:
  // A key's text has the number of the key among `keys` of the rows, counted from `first_text` on.
  // `fetch` gives the heap's objects afresh: the tuples among them are looked at in the end.
  Search(PyObject* objects, int64_t depth, size_t targets, int64_t first_text, PyObject* fetch)
      : objects_(list_items(objects)), count_(size_of(objects)), depth_(depth),
        first_text_(first_text), fetch_(fetch),
        cap_(4 * targets + 10000), nodes_(targets + 4096) {
    edges_.reserve(targets + 1024);
    skip_.insert(reinterpret_cast<uintptr_t>(objects));
  }

  void skip(uintptr_t address) { skip_.insert(address); }

  void anchor(uintptr_t address, Origin origin) {
    const int32_t number = nodes_.add(pointer(address));
    if (origin == kTemporary) {
      temporaries_.push_back(number);
    } else {
      begin(number, origin);
      if (origin == kMain || origin == kOtherModule) {
        modules_.push_back(number);
      }
    }
  }

  void target(uintptr_t address) {
    targets_.push_back(nodes_.add(pointer(address)));
  }

  void run() {
    settle();
    for (pass_ = 0; pass_ < depth_ && choose_wanted(); ++pass_) {
      look_into_modules();
      settle();
      if (all_resolved()) {
        break;
      }
      look(objects_, count_);
      settle();
    }
    if (!all_resolved()) {
      go_on_through_tuples();
    }
    begin_elsewhere();
  }

  ~Search() {
    if (fresh_ != nullptr) {
      Py_DecRef(fresh_);
    }
  }

  void write(Rows& rows);

 private:
  void begin(int32_t number, Origin origin) {
    Node& node = nodes_[number];
    if (!node.resolved) {
      node.resolved = true;
      node.distance = 0;
      node.origin = origin;
      settled_.push_back(number);
    }
  }

  bool choose_wanted();
  bool all_resolved() const;
  void look_into_modules();
  void look(PyObject* const* objects, ssize_t count);
  void go_on_through_tuples();
  void visit(PyObject* object, const Type& type);
  void visit_items(PyObject* const* items, ssize_t count);
  void settle();
  void begin_elsewhere();
  bool better(const Edge& edge, int32_t than) const;
  int64_t number_of_key(PyObject* key, bool attribute, Rows& rows);
  void write_row(int32_t number, Rows& rows);

  bool maybe(const PyObject* object) const {
    const auto address = reinterpret_cast<uintptr_t>(object);
    const uint64_t bit = hash_of(address) >> bloom_shift_;
    return bloom_[bit >> 6] >> (bit & 63) & 1;
  }

  void probe(PyObject* child, How how, int64_t value) {
    if (maybe(child)) {
      found(child, how, value);
    }
  }

  void found(PyObject* child, How how, int64_t value);
  int32_t holder();

  static int visit_any(PyObject* child, void* self) {
    static_cast<Search*>(self)->probe(child, kOpaque, 0);
    return 0;
  }

  PyObject* const* objects_;
  ssize_t count_;
  int64_t depth_, first_text_;
  PyObject* fetch_;
  PyObject* fresh_ = nullptr;
  size_t cap_;
  int16_t pass_ = 0;
  Types types_;
  Nodes nodes_;
  std::vector<Edge> edges_;
  std::vector<int32_t> targets_, wanted_, settled_, temporaries_, modules_;
  std::unordered_set<uintptr_t> skip_;
  struct KeyNumber {
    uint64_t key = 0;
    int64_t number = 0;
  };
  KeyNumber key_numbers_[1024];  // of keys met lately: many dicts have the same ones
  std::vector<int8_t> spaces_;  // for each row: its entries are attributes
  std::vector<uint64_t> bloom_;
  int bloom_shift_ = 0;
  bool wants_containers_ = false;
  size_t new_holders_ = 0;
  PyObject* current_ = nullptr;
  const Type* current_type_ = nullptr;
  int32_t current_number_ = -1;  // -1: not asked yet, -2: not to be used
};

// It only hints: nothing goes wrong where an object is made up otherwise.
void prefetch_behind(PyObject* object, const Type& type) {
  const char* start = reinterpret_cast<const char*>(object);
  if (type.kind == kList) {
    __builtin_prefetch(list_items(object));
  } else if (type.kind == kDict) {
    const char* keys = at<const char*>(object, 32);
    __builtin_prefetch(keys);
    __builtin_prefetch(keys + 64);
  } else if (type.kind == kOther && type.basicsize >= 24) {
    __builtin_prefetch(at<const char*>(object, 16));
  } else if (type.kind == kFunction) {
    __builtin_prefetch(start + 64);
  }
}

// Wanted are the holders, not looked at yet, by which a target without a name can be reached.
bool Search::choose_wanted() {
  wanted_.clear();
  std::vector<int32_t> open, marked;
  for (const int32_t target : targets_) {
    if (!nodes_[target].resolved && !nodes_[target].marked) {
      nodes_[target].marked = true;
      open.push_back(target);
    }
  }
  while (!open.empty()) {
    const int32_t number = open.back();
    open.pop_back();
    marked.push_back(number);
    if (nodes_[number].wanted < 0) {
      wanted_.push_back(number);
      nodes_[number].wanted = pass_;
    }
    for (int32_t edge = nodes_[number].into; edge >= 0; edge = edges_[edge].next_into) {
      Node& holder = nodes_[edges_[edge].holder];
      if (!holder.marked && !holder.resolved) {
        holder.marked = true;
        open.push_back(edges_[edge].holder);
      }
    }
  }
  for (const int32_t number : marked) {
    nodes_[number].marked = false;
  }
  int bits = 14;
  while ((size_t{1} << bits) < 8 * wanted_.size()) {
    ++bits;
  }
  bloom_shift_ = 64 - bits;
  bloom_.assign(size_t{1} << (bits - 6), 0);
  wants_containers_ = false;
  for (const int32_t number : wanted_) {
    const uint64_t bit = hash_of(nodes_[number].address) >> bloom_shift_;
    bloom_[bit >> 6] |= uint64_t{1} << (bit & 63);
    const Kind kind = types_.of(pointer(nodes_[number].address)).kind;
    wants_containers_ |= kind == kTuple || kind == kDict;
  }
  return !wanted_.empty();
}

bool Search::all_resolved() const {
  return std::all_of(targets_.begin(), targets_.end(), [&](int32_t number) {
    return nodes_[number].resolved;
  });
}

// No way is shorter than from a global, and most objects that are held by nothing but containers
// are reached from one: that is known without another look at the whole heap.
void Search::look_into_modules() {
  for (const int32_t number : modules_) {
    auto* const object = static_cast<PyObject*>(pointer(nodes_[number].address));
    const Type& type = types_.of(object);
    if (type.kind == kDict) {
      visit(object, type);
    }
  }
}

// Most of the time goes into waiting for memory, so an object is asked for in two steps ahead of
// its turn: first its header, then, its type being known, what lies behind it.
void Search::look(PyObject* const* objects, ssize_t count) {
  new_holders_ = 0;
  constexpr ssize_t kFar = 24, kNear = 8;
  const Type* ahead[kNear];
  for (ssize_t index = -kNear; index < count; ++index) {
    if (index + kFar < count) {
      __builtin_prefetch(reinterpret_cast<const char*>(objects[index + kFar]) + 8);
    }
    const Type*& turn = ahead[(index + kNear) % kNear];
    const Type* const type = turn;
    if (index + kNear < count) {
      turn = &types_.of(objects[index + kNear]);
      prefetch_behind(objects[index + kNear], *turn);
    }
    if (index >= 0) {
      visit(objects[index], *type);
    }
  }
}

// Nobody may hold a tuple that is still being made while other threads run: the one that makes it
// would fail. So no tuple is among the objects that the caller holds, and all are fetched here, for
// the time of one call, in which no other thread runs.
void Search::go_on_through_tuples() {
  fresh_ = PyObject_CallNoArgs(fetch_);
  if (fresh_ == nullptr) {
    PyErr_Clear();
    return;
  }
  skip_.insert(reinterpret_cast<uintptr_t>(fresh_));
  std::vector<PyObject*> tuples;
  std::copy_if(
      list_items(fresh_), list_items(fresh_) + size_of(fresh_), std::back_inserter(tuples),
      [](PyObject* object) { return type_of(object) == &PyTuple_Type; });
  for (Node& node : nodes_) {
    node.wanted = node.resolved ? node.wanted : -1;
  }
  const auto look_at_tuples = [&] {
    look(tuples.data(), static_cast<ssize_t>(tuples.size()));
  };
  const int16_t end = static_cast<int16_t>(pass_ + depth_);
  for (bool first = true; ++pass_ < end && choose_wanted(); first = false) {
    look_at_tuples();
    if (!first) {
      look(objects_, count_);
    }
    settle();
    if (all_resolved()) {
      return;
    }
  }
}

void Search::visit_items(PyObject* const* items, ssize_t count) {
  constexpr ssize_t kAhead = 12;
  for (ssize_t index = 0; index < count; ++index) {
    if (index + kAhead < count) {
      nodes_.prefetch(items[index + kAhead]);
    }
    if (items[index] != nullptr) {
      probe(items[index], kItem, index);
    }
  }
}

void Search::visit(PyObject* object, const Type& type) {
  current_ = object;
  current_type_ = &type;
  current_number_ = -1;
  switch (type.kind) {
    case kAtomic:
      return;
    case kFunction:
      if (wants_containers_) {
        probe(at<PyObject*>(object, 56), kDefaults, 0);
        probe(at<PyObject*>(object, 64), kKeywordDefaults, 0);
        probe(at<PyObject*>(object, 72), kClosure, 0);
        probe(at<PyObject*>(object, 88), kVars, 0);
      }
      return;
    case kType:
    case kModule:
      if (!wants_containers_) {
        return;
      }
      break;
    case kCell:
      probe(at<PyObject*>(object, 16), kContents, 0);
      return;
    case kList:
      visit_items(list_items(object), size_of(object));
      break;
    case kTuple:
      visit_items(tuple_items(object), size_of(object));
      break;
    case kDict: {
      if (shows_an_instance(object)) {
        return;
      }
      ssize_t position = 0;
      PyObject *key = nullptr, *value = nullptr;
      while (PyDict_Next(object, &position, &key, &value)) {
        probe(value, kValue, reinterpret_cast<int64_t>(key));
        probe(key, kKey, 0);
      }
      break;
    }
    default:
      break;
  }
  if (!type.exact && type.traverse != nullptr) {
    type.traverse(object, &visit_any, this);
  }
}

int32_t Search::holder() {
  if (current_number_ != -1) {
    return current_number_;
  }
  const auto address = reinterpret_cast<uintptr_t>(current_);
  int32_t number = skip_.count(address) ? -2 : nodes_.find(current_);
  if (number == -1) {
    number = ++new_holders_ > cap_ ? -2 : nodes_.add(current_);
  }
  current_number_ = number;
  if (number >= 0) {
    static const std::unordered_map<int, Origin> kOrigins = {
        {kType, kClass}, {kModule, kOtherModule}, {kFunction, kFunctionOrigin},
        {kGenerator, kGeneratorOrigin}, {kFrame, kFrameOrigin}};
    const auto origin = kOrigins.find(current_type_->kind);
    if (origin != kOrigins.end()) {
      begin(number, origin->second);
    }
  }
  return number;
}

void Search::found(PyObject* child, How how, int64_t value) {
  const int32_t number = nodes_.find(child);
  if (number < 0 || nodes_[number].wanted != pass_) {
    return;
  }
  if (how == kOpaque) {
    const Kind kind = current_type_->kind;
    const bool dict = types_.of(child).kind == kDict;
    if (kind == kType || kind == kModule) {
      if (!dict) {
        return;
      }
      how = kVars;
    } else if (kind == kGenerator || kind == kFrame) {
      how = kLocal;
    } else if (dict && dict_of(current_, *current_type_) == child) {
      how = kVars;
    }
  }
  const int32_t from = holder();
  if (from < 0) {
    return;
  }
  const auto edge = static_cast<int32_t>(edges_.size());
  edges_.push_back(Edge{from, number, nodes_[number].into, nodes_[from].out, value, how});
  nodes_[number].into = edge;
  nodes_[from].out = edge;
}

// Fewer steps win, then where the name begins, then what can be written down, then the order of
// the heap.
bool Search::better(const Edge& edge, int32_t than) const {
  if (than < 0) {
    return true;
  }
  const Edge& other = edges_[than];
  const Node &left = nodes_[edge.holder], &right = nodes_[other.holder];
  if (left.distance != right.distance) {
    return left.distance < right.distance;
  }
  if (left.origin != right.origin) {
    return left.origin < right.origin;
  }
  if ((edge.how == kOpaque) != (other.how == kOpaque)) {
    return other.how == kOpaque;
  }
  return &edge < &other;
}

// Gives a name to all that can be reached from what has one, the nearest first.
void Search::settle() {
  std::vector<std::vector<int32_t>> steps;
  const auto add = [&](int32_t number, int16_t distance) {
    if (static_cast<size_t>(distance) >= steps.size()) {
      steps.resize(distance + 1);
    }
    steps[distance].push_back(number);
  };
  for (const int32_t number : settled_) {
    add(number, nodes_[number].distance);
  }
  settled_.clear();
  // a holder with a name may have got new edges from the latest pass
  for (const int32_t number : wanted_) {
    for (int32_t edge = nodes_[number].into; edge >= 0; edge = edges_[edge].next_into) {
      const Node& holder = nodes_[edges_[edge].holder];
      if (holder.resolved && !nodes_[number].resolved && better(edges_[edge], nodes_[number].best)) {
        nodes_[number].best = edge;
      }
    }
    if (nodes_[number].best >= 0 && !nodes_[number].resolved) {
      add(number, nodes_[edges_[nodes_[number].best].holder].distance + 1);
    }
  }
  for (size_t distance = 0; distance < steps.size(); ++distance) {
    // what is added from here on is one step farther
    const std::vector<int32_t> now = std::move(steps[distance]);
    for (const int32_t number : now) {
      Node& node = nodes_[number];
      if (distance > 0) {
        if (node.resolved) {
          continue;
        }
        const Node& holder = nodes_[edges_[node.best].holder];
        node.resolved = true;
        node.distance = static_cast<int16_t>(distance);
        node.origin = holder.origin;
      }
    }
    for (const int32_t number : now) {
      for (int32_t edge = nodes_[number].out; edge >= 0; edge = edges_[edge].next_out) {
        Node& child = nodes_[edges_[edge].child];
        if (!child.resolved && better(edges_[edge], child.best)) {
          child.best = edge;
          add(edges_[edge].child, static_cast<int16_t>(distance + 1));
        }
      }
    }
  }
}

// What no name reaches begins at a temporary, else at what nothing holds, else within a circle.
void Search::begin_elsewhere() {
  wanted_.clear();
  for (const int32_t number : temporaries_) {
    begin(number, kTemporary);
  }
  settle();
  const auto begin_where = [&](Origin origin, auto&& suits) {
    const auto count = static_cast<int32_t>(nodes_.size());
    for (int32_t number = 0; number < count; ++number) {
      // a tuple that nothing holds may be one that is being made
      if (!nodes_[number].resolved && nodes_[number].out >= 0 && suits(nodes_[number]) &&
          types_.of(pointer(nodes_[number].address)).kind != kTuple) {
        begin(number, origin);
      }
    }
    settle();
  };
  begin_where(kTop, [](const Node& node) { return node.into < 0; });
  begin_where(kCycle, [&](const Node& node) {
    return types_.of(pointer(node.address)).kind == kOther;
  });
  begin_where(kCycle, [](const Node&) { return true; });
}

int64_t Search::number_of_key(PyObject* key, bool attribute, Rows& rows) {
  const uint64_t known = reinterpret_cast<uint64_t>(key) | (attribute ? 1 : 0);
  KeyNumber& place = key_numbers_[hash_of(known) >> 54];
  if (place.key != known) {
    place = KeyNumber{known, first_text_ + static_cast<int64_t>(rows.keys.size())};
    rows.keys.push_back(key);
    rows.attribute.push_back(attribute);
  }
  return place.number;
}

void Search::write_row(int32_t number, Rows& rows) {
  Node& node = nodes_[number];
  node.row = static_cast<int32_t>(rows.how.size());
  auto* object = reinterpret_cast<PyObject*>(node.address);
  int32_t from = -1;
  How how = kRoot;
  int64_t value = node.origin;
  bool space = node.origin == kMain || node.origin == kOtherModule;
  if (node.best >= 0) {
    const Edge& edge = edges_[node.best];
    const Node& holder = nodes_[edge.holder];
    from = holder.row;
    how = edge.how;
    value = edge.value;
    space = how == kVars;
    auto* key = reinterpret_cast<PyObject*>(value);
    if (how == kOpaque) {
      auto* holding = reinterpret_cast<PyObject*>(holder.address);
      key = inline_name(holding, types_.of(holding), object);
      how = key != nullptr ? kAttribute : kOpaque;
    } else if (how == kValue && spaces_[from] && type_of(key) == &PyUnicode_Type) {
      how = kAttribute;
    }
    if (how == kAttribute || how == kValue) {
      int overflow = 1;
      const bool whole = how == kValue && type_of(key) == &PyLong_Type;
      const int64_t index = whole ? PyLong_AsLongLongAndOverflow(key, &overflow) : 0;
      if (overflow == 0) {
        how = kItem;
        value = index;
      } else if (how == kAttribute && types_.of(object).kind == kDict &&
                 std::count(g_layout.transparent, g_layout.transparent + 3, key) != 0) {
        how = kAlias;
        value = 0;
        space = true;
      } else {
        value = number_of_key(key, how == kAttribute, rows);
      }
    } else if (how == kItem && static_cast<How>(rows.value[from]) == kClosure &&
               rows.how[from] == kAlias) {
      how = kFree;
    } else if (how == kContents && (rows.how[from] == kFree || rows.how[from] == kLocal)) {
      how = kAlias;
    } else if (how == kVars || how == kClosure) {
      value = how;
      how = kAlias;
    }
  }
  rows.holder.push_back(from);
  rows.how.push_back(how);
  rows.value.push_back(value);
  rows.address.push_back(node.address);
  spaces_.push_back(space);
}

void Search::write(Rows& rows) {
  std::vector<std::vector<int32_t>> steps;
  for (const int32_t target : targets_) {
    int32_t number = nodes_[target].resolved ? target : -1;
    while (number >= 0 && !nodes_[number].marked) {
      Node& node = nodes_[number];
      node.marked = true;
      if (static_cast<size_t>(node.distance) >= steps.size()) {
        steps.resize(node.distance + 1);
      }
      steps[node.distance].push_back(number);
      number = node.best >= 0 ? edges_[node.best].holder : -1;
    }
  }
  size_t count = 0;
  for (const auto& step : steps) {
    count += step.size();
  }
  rows.reserve(count);
  for (const auto& step : steps) {
    for (const int32_t number : step) {
      write_row(number, rows);
    }
  }
  for (const int32_t target : targets_) {
    const Node& node = nodes_[target];
    rows.targets.push_back(node.origin == kTop && node.best < 0 ? -1 : node.row);
  }
}

}  // namespace
