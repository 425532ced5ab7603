# CUDA kernels: nvcc makes one fat binary of a source, and a C file embeds it.
# Without nvcc nothing is embedded, and the CUDA backend says so. Targets are
# those of the list that the compiler knows, and PTX for later devices; an empty
# list asks for no kernels.
set(TIDE_CUDA_TARGETS 90 100 CACHE STRING "Compute capabilities of the kernels")

file(GLOB TIDE_CUDA_FOLDERS /usr/local/cuda /usr/local/cuda-*)
find_program(TIDE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH
  PATH_SUFFIXES bin PATHS ${TIDE_CUDA_FOLDERS})

set(TIDE_NVCC_FLAGS)
if(TIDE_NVCC)
  execute_process(COMMAND ${TIDE_NVCC} --list-gpu-code
    OUTPUT_VARIABLE known ERROR_QUIET)
  foreach(target ${TIDE_CUDA_TARGETS})
    if(known MATCHES "sm_${target}[^0-9]")
      list(APPEND TIDE_NVCC_FLAGS
        -gencode arch=compute_${target},code=sm_${target})
      if(NOT TIDE_CUDA_PTX)
        set(TIDE_CUDA_PTX
          -gencode arch=compute_${target},code=compute_${target})
      endif()
    endif()
  endforeach()
endif()
# It needs a C++ compiler beside it: better to know that now.
if(TIDE_NVCC_FLAGS AND NOT TIDE_NVCC_WORKS STREQUAL "${TIDE_NVCC}")
  file(WRITE ${CMAKE_BINARY_DIR}/nvcc_check.cu "__global__ void check() {}\n")
  execute_process(COMMAND ${TIDE_NVCC} -std=c++17 ${TIDE_NVCC_FLAGS} -fatbin
      -o ${CMAKE_BINARY_DIR}/nvcc_check.fatbin nvcc_check.cu
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR} RESULT_VARIABLE failed
    OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(failed)
    message(WARNING "No CUDA kernels: ${TIDE_NVCC} fails:\n${said}")
    set(TIDE_NVCC_FLAGS)
  else()
    set(TIDE_NVCC_WORKS ${TIDE_NVCC} CACHE INTERNAL "nvcc that was tried")
  endif()
endif()
if(TIDE_NVCC_FLAGS)
  message(STATUS "CUDA kernels: ${TIDE_NVCC}")
else()
  message(STATUS "CUDA kernels: none, no nvcc that knows ${TIDE_CUDA_TARGETS}")
endif()

# Compiles `source` to `image` when it or `parts` change; `user`, a C file,
# embeds it by the macro TIDE_KERNELS_IMAGE.
function(tide_embed_kernels source image user)
  if(NOT TIDE_NVCC_FLAGS)
    return()
  endif()
  add_custom_command(OUTPUT ${image}
    COMMAND ${TIDE_NVCC} -std=c++17 -O3 -fmad=false ${TIDE_NVCC_FLAGS}
      ${TIDE_CUDA_PTX} -fatbin -o ${image} ${source}
    DEPENDS ${source} ${ARGN} COMMENT "Building CUDA kernels ${image}" VERBATIM)
  set_property(SOURCE ${user} APPEND PROPERTY COMPILE_DEFINITIONS
    TIDE_KERNELS_IMAGE="${image}")
  set_property(SOURCE ${user} APPEND PROPERTY OBJECT_DEPENDS ${image})
endfunction()

file(GLOB TIDE_KERNEL_PARTS CONFIGURE_DEPENDS
  ${CMAKE_SOURCE_DIR}/src/backend/cuda/kernels/*)
tide_embed_kernels(${CMAKE_SOURCE_DIR}/src/backend/cuda/kernels/kernels.cu
  ${CMAKE_BINARY_DIR}/kernels.fatbin
  ${CMAKE_SOURCE_DIR}/src/backend/cuda/kernels.c ${TIDE_KERNEL_PARTS})
