#include <poplar/DeviceManager.hpp>
#include <poplar/IPUModel.hpp>
#include <poplar/exceptions.hpp>

#include <cmath>
#include <cstring>
#include <limits>

#include "state.hpp"

namespace poplar {

std::string Type::toString() const {
  switch (kind_) {
  case Kind::Bool:
    return "bool";
  case Kind::Char:
    return "char";
  case Kind::UnsignedChar:
    return "unsigned char";
  case Kind::Short:
    return "short";
  case Kind::UnsignedShort:
    return "unsigned short";
  case Kind::Int:
    return "int";
  case Kind::UnsignedInt:
    return "unsigned int";
  case Kind::LongLong:
    return "long long";
  case Kind::UnsignedLongLong:
    return "unsigned long long";
  case Kind::Half:
    return "half";
  case Kind::Float:
    return "float";
  case Kind::Invalid:
    break;
  }
  return "<no type>";
}

std::ostream &operator<<(std::ostream &out, const Type &type) { return out << type.toString(); }

namespace detail {

unsigned sizeOf(Type type) {
  switch (type.kind()) {
  case Type::Kind::Bool:
  case Type::Kind::Char:
  case Type::Kind::UnsignedChar:
    return 1;
  case Type::Kind::Short:
  case Type::Kind::UnsignedShort:
  case Type::Kind::Half:
    return 2;
  case Type::Kind::Int:
  case Type::Kind::UnsignedInt:
  case Type::Kind::Float:
    return 4;
  case Type::Kind::LongLong:
  case Type::Kind::UnsignedLongLong:
    return 8;
  case Type::Kind::Invalid:
    break;
  }
  throw type_error("a tensor without a type");
}

namespace {

template <typename T> void integerTo(double value, Type type, unsigned char *to) {
  // A double represents 2^63 and 2^64 exactly, but not the largest integers below them.
  const double low = static_cast<double>(std::numeric_limits<T>::min());
  const double high = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (!(value >= low && value < high) || value != std::floor(value))
    throw type_error(std::to_string(value) + " is not a value of type " + type.toString());
  const T number = static_cast<T>(value);
  std::memcpy(to, &number, sizeof(number));
}

template <typename T> double read(const unsigned char *from) {
  T number;
  std::memcpy(&number, from, sizeof(number));
  return static_cast<double>(number);
}

} // namespace

void numberTo(double value, Type type, unsigned char *to) {
  switch (type.kind()) {
  case Type::Kind::Bool:
    *to = value != 0;
    return;
  case Type::Kind::Char:
    return integerTo<signed char>(value, type, to);
  case Type::Kind::UnsignedChar:
    return integerTo<unsigned char>(value, type, to);
  case Type::Kind::Short:
    return integerTo<std::int16_t>(value, type, to);
  case Type::Kind::UnsignedShort:
    return integerTo<std::uint16_t>(value, type, to);
  case Type::Kind::Int:
    return integerTo<std::int32_t>(value, type, to);
  case Type::Kind::UnsignedInt:
    return integerTo<std::uint32_t>(value, type, to);
  case Type::Kind::LongLong:
    return integerTo<std::int64_t>(value, type, to);
  case Type::Kind::UnsignedLongLong:
    return integerTo<std::uint64_t>(value, type, to);
  case Type::Kind::Half: {
    const half number(static_cast<float>(value));
    std::memcpy(to, &number, sizeof(number));
    return;
  }
  case Type::Kind::Float: {
    const float number = static_cast<float>(value);
    std::memcpy(to, &number, sizeof(number));
    return;
  }
  case Type::Kind::Invalid:
    break;
  }
  throw type_error("a value without a type");
}

double numberOf(const unsigned char *from, Type type) {
  switch (type.kind()) {
  case Type::Kind::Bool:
    return *from != 0;
  case Type::Kind::Char:
    return read<signed char>(from);
  case Type::Kind::UnsignedChar:
    return read<unsigned char>(from);
  case Type::Kind::Short:
    return read<std::int16_t>(from);
  case Type::Kind::UnsignedShort:
    return read<std::uint16_t>(from);
  case Type::Kind::Int:
    return read<std::int32_t>(from);
  case Type::Kind::UnsignedInt:
    return read<std::uint32_t>(from);
  case Type::Kind::LongLong:
    return read<std::int64_t>(from);
  case Type::Kind::UnsignedLongLong:
    return read<std::uint64_t>(from);
  case Type::Kind::Half:
    return read<half>(from);
  case Type::Kind::Float:
    return read<float>(from);
  case Type::Kind::Invalid:
    break;
  }
  throw type_error("a value without a type");
}

double numberOf(const std::vector<unsigned char> &bytes, Type type) {
  if (bytes.empty())
    throw graph_connection_error("a field of type " + type.toString() + " has no initial value");
  return numberOf(bytes.data(), type);
}

} // namespace detail

namespace {

struct Chip {
  const char *arch;
  unsigned tiles;
  unsigned bytesPerTile;
  double clockHz;
};

// From Graphcore's data sheets.
constexpr Chip chips[] = {
    {"ipu1", 1216, 256 * 1024, 1.6e9},
    {"ipu2", 1472, 624 * 1024, 1.33e9},
    {"ipu21", 1472, 624 * 1024, 1.33e9},
    {"bow", 1472, 624 * 1024, 1.85e9},
};

} // namespace

Target Target::createIPUTarget(unsigned numIPUs, StringRef systemType, const OptionFlags &options) {
  return createIPUTarget(numIPUs, 0, systemType, options);
}

Target Target::createIPUTarget(unsigned numIPUs, unsigned tilesPerIPU, StringRef systemType, const OptionFlags &) {
  const std::string name = systemType;
  if (numIPUs == 0 || numIPUs > 64)
    throw invalid_machine_model("the number of IPUs must be in 1..64, got " + std::to_string(numIPUs));
  for (const Chip &chip : chips) {
    if (name != chip.arch)
      continue;
    if (tilesPerIPU > chip.tiles)
      throw invalid_machine_model(name + " has " + std::to_string(chip.tiles) + " tiles, not " +
                                  std::to_string(tilesPerIPU));
    Target target;
    target.machine_ = std::make_shared<const detail::Machine>(
        detail::Machine{name, numIPUs, tilesPerIPU ? tilesPerIPU : chip.tiles, chip.bytesPerTile, chip.clockHz});
    return target;
  }
  throw invalid_machine_model("the target must be ipu1, ipu2, ipu21 or bow, got \"" + name + "\"");
}

Target::Target() : machine_(std::make_shared<const detail::Machine>()) {}
std::string Target::getTargetArchString() const { return machine_->arch; }
unsigned Target::getNumIPUs() const { return machine_->numIPUs; }
unsigned Target::getTilesPerIPU() const { return machine_->tilesPerIPU; }
unsigned Target::getNumTiles() const { return machine_->numIPUs * machine_->tilesPerIPU; }
unsigned Target::getNumWorkerContexts() const { return 6; }
unsigned Target::getBytesPerTile() const { return machine_->bytesPerTile; }
double Target::getTileClockFrequency() const { return machine_->clockHz; }
unsigned Target::getExchangeBytesPerCycle() const { return 4; }
unsigned Target::getDataPathWidth() const { return 64; }
unsigned Target::getMemcpyBytesPerCycle() const { return 8; }
unsigned Target::getMinIPUSyncDelay() const { return machine_->minSyncCycles; }
unsigned Target::getInterIPUBytesPerCycle() const {
  return static_cast<unsigned>(160e9 / (machine_->clockHz > 0 ? machine_->clockHz : 1e9));
}
// An assumption, see docs/reference/ipu-model.md.
unsigned Target::getGlobalSyncCycles() const { return 600; }
unsigned Target::getTypeSize(const Type &type) const { return detail::sizeOf(type); }
unsigned Target::getVectorWidth(const Type &type) const { return 8 / detail::sizeOf(type); }

bool operator==(const Target &a, const Target &b) {
  return a.getTargetArchString() == b.getTargetArchString() && a.getNumIPUs() == b.getNumIPUs() &&
         a.getTilesPerIPU() == b.getTilesPerIPU() && a.getMinIPUSyncDelay() == b.getMinIPUSyncDelay();
}

std::vector<Device> DeviceManager::getDevices(const OptionFlags &options) const {
  return getDevices(TargetType::IPU_MODEL, 1, options);
}
std::vector<Device> DeviceManager::getDevices(TargetType type, unsigned numIPUs, const OptionFlags &options) const {
  if (type == TargetType::CPU || numIPUs == 0)
    return {};
  return {Device(Target::createIPUTarget(numIPUs, "ipu2", options))};
}
Device DeviceManager::getDevice(unsigned deviceId, const OptionFlags &options) const {
  const std::vector<Device> devices = getDevices(options);
  if (deviceId >= devices.size())
    throw index_error("device " + std::to_string(deviceId) + " of a machine that has " +
                      std::to_string(devices.size()));
  return devices[deviceId];
}
Device DeviceManager::acquireAvailableDevice(unsigned numIPUs, const OptionFlags &options) const {
  const std::vector<Device> devices = getDevices(TargetType::IPU_MODEL, numIPUs, options);
  if (devices.empty())
    throw invalid_machine_model("no device of " + std::to_string(numIPUs) + " IPUs");
  return devices[0];
}

Device IPUModel::createDevice(OptionFlags options) const {
  Target target = Target::createIPUTarget(numIPUs, tilesPerIPU, ipuVersion, options);
  detail::Machine machine = *target.machine_;
  machine.minSyncCycles = minIPUSyncDelay;
  target.machine_ = std::make_shared<const detail::Machine>(machine);
  return Device(target);
}

} // namespace poplar
