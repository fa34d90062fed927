// Names from references: the shortest path to each object, written as rows.

#pragma once

#include "search.h"

namespace {

// Compares by number of references, then by the origin of the name, then by whether the reference
// can be named, then by the order of the heap.
bool Search::is_better(const Edge& edge, int32_t than) const {
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

// Resolves all nodes that can be reached from resolved ones, the nearest first.
void Search::resolve() {
  std::vector<std::vector<int32_t>> steps;
  const auto add = [&](int32_t number, int16_t distance) {
    if (static_cast<size_t>(distance) >= steps.size()) {
      steps.resize(distance + 1);
    }
    steps[distance].push_back(number);
  };
  for (const int32_t number : new_roots_) {
    add(number, nodes_[number].distance);
  }
  new_roots_.clear();
  // the latest pass may have added edges to resolved holders
  for (const int32_t number : wanted_) {
    for (int32_t edge = nodes_[number].into; edge >= 0; edge = edges_[edge].next_into) {
      const bool is_resolved = nodes_[edges_[edge].holder].resolved;
      if (is_resolved && !nodes_[number].resolved && is_better(edges_[edge], nodes_[number].best)) {
        nodes_[number].best = edge;
      }
    }
    if (nodes_[number].best >= 0 && !nodes_[number].resolved) {
      add(number, nodes_[edges_[nodes_[number].best].holder].distance + 1);
    }
  }
  for (size_t distance = 0; distance < steps.size(); ++distance) {
    // nodes added from here on are one step farther
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
        if (!child.resolved && is_better(edges_[edge], child.best)) {
          child.best = edge;
          add(edges_[edge].child, static_cast<int16_t>(distance + 1));
        }
      }
    }
  }
}

// Adds roots for unresolved nodes: temporaries, then objects without a holder, then cycles.
void Search::add_other_roots() {
  wanted_.clear();
  for (const int32_t number : temporaries_) {
    add_root(number, kTemporary);
  }
  resolve();
  const auto add_roots = [&](Origin origin, auto&& is_root) {
    const auto count = static_cast<int32_t>(nodes_.size());
    for (int32_t number = 0; number < count; ++number) {
      // a tuple without a holder may be one that is being made
      if (!nodes_[number].resolved && nodes_[number].out >= 0 && is_root(nodes_[number]) &&
          types_.of(to_pointer(nodes_[number].address)).kind != kTuple) {
        add_root(number, origin);
      }
    }
    resolve();
  };
  add_roots(kTop, [](const Node& node) { return node.into < 0; });
  add_roots(kCycle, [&](const Node& node) {
    return types_.of(to_pointer(node.address)).kind == kOther;
  });
  add_roots(kCycle, [](const Node&) { return true; });
}

int64_t Search::number_of_key(PyObject* key, bool attribute, Rows& rows) {
  const uint64_t known = reinterpret_cast<uint64_t>(key) | (attribute ? 1 : 0);
  KeyNumber& place = key_numbers_[hash_address(known) >> 54];
  if (place.key != known) {
    place = KeyNumber{known, first_text_ + static_cast<int64_t>(rows.keys.size())};
    rows.keys.push_back(key);
    const bool is_short = type_of(key) == &PyUnicode_Type && size_of(key) <= kMaxKeyLength;
    rows.written.push_back(attribute ? kBare : is_short ? kQuoted : kDescribed);
  }
  return place.number;
}

void Search::write_row(int32_t number, Rows& rows) {
  Node& node = nodes_[number];
  node.row = static_cast<int32_t>(rows.how.size());
  auto* object = reinterpret_cast<PyObject*>(node.address);
  int32_t holder_row = -1;
  How how = kRoot;
  int64_t value = node.origin;
  bool has_attributes = node.origin == kMain || node.origin == kOtherModule;
  if (node.best >= 0) {
    const Edge& edge = edges_[node.best];
    const Node& holder = nodes_[edge.holder];
    holder_row = holder.row;
    how = edge.how;
    value = edge.value;
    has_attributes = how == kVars;
    auto* key = reinterpret_cast<PyObject*>(value);
    if (how == kOpaque) {
      auto* holding = reinterpret_cast<PyObject*>(holder.address);
      key = inline_name(holding, types_.of(holding), object);
      how = key != nullptr ? kAttribute : kOpaque;
    } else if (how == kValue && are_attributes_[holder_row] && type_of(key) == &PyUnicode_Type) {
      how = kAttribute;
    }
    if (how == kAttribute || how == kValue) {
      int overflow = 1;
      const bool is_int = how == kValue && type_of(key) == &PyLong_Type;
      const int64_t index = is_int ? PyLong_AsLongLongAndOverflow(key, &overflow) : 0;
      if (overflow == 0) {
        how = kItem;
        value = index;
      } else if (how == kAttribute && types_.of(object).kind == kDict &&
                 std::count(g_layout.transparent, g_layout.transparent + 3, key) != 0) {
        how = kAlias;
        value = 0;
        has_attributes = true;
      } else {
        value = number_of_key(key, how == kAttribute, rows);
      }
    } else if (how == kItem && static_cast<How>(rows.value[holder_row]) == kClosure &&
               rows.how[holder_row] == kAlias) {
      how = kClosureVariable;
    } else if (how == kContents &&
               (rows.how[holder_row] == kClosureVariable || rows.how[holder_row] == kLocal)) {
      how = kAlias;
    } else if (how == kVars || how == kClosure) {
      value = how;
      how = kAlias;
    }
  }
  rows.holder.push_back(holder_row);
  rows.how.push_back(how);
  rows.value.push_back(value);
  rows.address.push_back(node.address);
  are_attributes_.push_back(has_attributes);
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
