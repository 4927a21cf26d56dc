// poplar::DataStream: a stream of values between the host and the device while a program runs.
#pragma once

#include <string>

#include <poplar/StringRef.hpp>
#include <poplar/Type.hpp>

namespace poplar {

enum class ReplicatedStreamMode { REPLICATE, BROADCAST };
enum class DataStreamType { HostToDeviceFIFO, DeviceToHostFIFO };

class DataStream {
public:
  DataStream() = default;
  DataStream(StringRef handle, Type type, std::size_t numElements, DataStreamType kind)
      : handle_(handle.cloneAsString()), elementType_(type), numElements_(numElements), kind_(kind) {}

  std::string handle() const { return handle_; }
  Type elementType() const { return elementType_; }
  std::size_t numElements() const { return numElements_; }
  DataStreamType type() const { return kind_; }

private:
  std::string handle_;
  Type elementType_;
  std::size_t numElements_ = 0;
  DataStreamType kind_ = DataStreamType::HostToDeviceFIFO;
};

} // namespace poplar
