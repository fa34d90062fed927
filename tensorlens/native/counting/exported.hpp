// The mark of functions that Python finds by name in a native part.

#pragma once

#define TL_EXPORT extern "C" __attribute__((visibility("default")))
