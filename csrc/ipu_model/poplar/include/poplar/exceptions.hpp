// Poplar's exceptions. Messages name vertex, field, tile and variables, and the remedy.
#pragma once

#include <stdexcept>
#include <string>

namespace poplar {

struct poplar_error : std::runtime_error {
  explicit poplar_error(const std::string &message) : std::runtime_error(message) {}
  // Return the name of the class, which the C interface adds to the message.
  virtual const char *name() const noexcept { return "poplar_error"; }
};

#define SNNIPU_POPLAR_ERROR(NAME, BASE)                                                                                \
  struct NAME : BASE {                                                                                                 \
    explicit NAME(const std::string &message) : BASE(message) {}                                                       \
    const char *name() const noexcept override { return #NAME; }                                                       \
  }

// A missing file, or text that cannot be parsed.
SNNIPU_POPLAR_ERROR(file_load_error, poplar_error);
SNNIPU_POPLAR_ERROR(parse_error, poplar_error);
SNNIPU_POPLAR_ERROR(index_error, poplar_error);
SNNIPU_POPLAR_ERROR(overflow_error, poplar_error);
SNNIPU_POPLAR_ERROR(type_error, poplar_error);
SNNIPU_POPLAR_ERROR(stream_connection_error, poplar_error);
SNNIPU_POPLAR_ERROR(invalid_option, poplar_error);
SNNIPU_POPLAR_ERROR(invalid_machine_model, poplar_error);
SNNIPU_POPLAR_ERROR(invalid_tile_mapping, poplar_error);
SNNIPU_POPLAR_ERROR(graph_object_load_error, poplar_error);
SNNIPU_POPLAR_ERROR(graph_object_creation_error, poplar_error);
SNNIPU_POPLAR_ERROR(graph_connection_error, poplar_error);
SNNIPU_POPLAR_ERROR(graph_program_compilation_error, poplar_error);
SNNIPU_POPLAR_ERROR(graph_memory_allocation_error, poplar_error);
SNNIPU_POPLAR_ERROR(tensor_creation_error, poplar_error);
SNNIPU_POPLAR_ERROR(tensor_io_state_error, poplar_error);
SNNIPU_POPLAR_ERROR(unknown_field, graph_connection_error);
SNNIPU_POPLAR_ERROR(unknown_vertex_type, poplar_error);
SNNIPU_POPLAR_ERROR(missing_perf_estimate, poplar_error);
SNNIPU_POPLAR_ERROR(runtime_error, poplar_error);

#undef SNNIPU_POPLAR_ERROR

} // namespace poplar
