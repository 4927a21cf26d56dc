// PopART subset: the registry of Opxs by operator.
#pragma once

#include <popart/operatoridentifier.hpp>

#include <functional>
#include <memory>
#include <vector>

namespace popart {

class Op;

namespace popx {

class Devicex;
class Opx;

class OpxManager {
public:
  using OpxFactoryFunc = std::function<std::unique_ptr<Opx>(Op *op, Devicex *devicex)>;

  static void registerOpx(const OperatorIdentifier &opid, OpxFactoryFunc factory);
  // Throw if none is registered.
  static std::unique_ptr<Opx> createOpx(Op *op, Devicex *devicex);
};

template <class OPX> class OpxCreator {
public:
  OpxCreator(const OperatorIdentifier &opid) : OpxCreator(std::vector<OperatorIdentifier>{opid}) {}
  OpxCreator(const std::vector<OperatorIdentifier> &opids) {
    for (const OperatorIdentifier &opid : opids)
      OpxManager::registerOpx(opid, [](Op *op, Devicex *devicex) -> std::unique_ptr<Opx> {
        return std::unique_ptr<OPX>(new OPX(op, devicex));
      });
  }
};

} // namespace popx
} // namespace popart
