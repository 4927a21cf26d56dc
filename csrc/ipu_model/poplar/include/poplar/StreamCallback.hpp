// poplar::StreamCallback: a function of the host that fills, or takes, what a stream carries.
#pragma once

#include <functional>

namespace poplar {

class StreamCallback {
public:
  enum class Result { Success, NotAvailable };
  virtual ~StreamCallback() = default;
  virtual Result prefetch(void *) { return Result::NotAvailable; }
  virtual void fetch(void *buffer) = 0;
  virtual void complete() {}
};

using StreamCallbackFunction = std::function<void(void *)>;

} // namespace poplar
