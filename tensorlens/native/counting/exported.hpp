// What Python finds in a native part, by its name.

#pragma once

#define TL_EXPORT extern "C" __attribute__((visibility("default")))
