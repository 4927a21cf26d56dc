// poplar::StreamCallback: a host function that fills or empties a stream's buffer.
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
