# CUDA, optional: two modules of the same sources, *_cuda.c and *.cu of verbs, ring, model and optim, loaded at run time by
# verbs/plugin.c, so that the program itself knows nothing of CUDA:
#
#   libringzero_cuda.so       kernels by nvcc, linked to the CUDA runtime and cuBLAS      where the toolkit is; not with sanitizers
#   libringzero_cudasim.so    kernels by g++, linked to tests/cudasim                     where NVIDIA's headers are; not installed
#
# RINGZERO_CUDA_ARCHITECTURES: for which GPUs the first is built, as "80;90"; 75 is the least, and GPUs newer than the newest compile
# its PTX when they load it. Empty: for those of this machine, and where there is none the first is not built, since nvcc takes as
# long as all the rest. tests/cuda_nvcc_test.sh compiles for all, with warnings as errors.
set(RINGZERO_CUDA_ARCHITECTURES "" CACHE STRING "GPUs to build for, e.g. 80;90; empty: those of this machine")
option(RINGZERO_COVERAGE "count which lines of the modules run in the simulator: tests/cuda_lines_test.sh" OFF)

file(GLOB cuda_c_files CONFIGURE_DEPENDS verbs/*_cuda.c ring/*_cuda.c model/*_cuda.c optim/*_cuda.c)
file(GLOB cuda_cu_files CONFIGURE_DEPENDS verbs/*.cu ring/*.cu model/*.cu optim/*.cu)

include(CheckLanguage)
check_language(CXX)
find_package(CUDAToolkit 12 QUIET)
find_path(RINGZERO_CUDA_HEADERS cuda_runtime_api.h HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include)
mark_as_advanced(RINGZERO_CUDA_HEADERS)
set(cuda_off "")
set(cudasim_off "")
if(NOT CMAKE_CXX_COMPILER)
  set(cudasim_off "no C++ compiler: apt install g++")
elseif(NOT RINGZERO_CUDA_HEADERS)
  set(cudasim_off "it needs NVIDIA's headers: install the CUDA toolkit, 12 or later, and set CUDAToolkit_ROOT if it is not found")
endif()
if(cudasim_off)
  set(cuda_off "${cudasim_off}")
elseif(NOT CUDAToolkit_NVCC_EXECUTABLE)
  set(cuda_off "nvcc was not found: install the CUDA toolkit, 12 or later, and set CUDAToolkit_ROOT if it is not found")
elseif(NOT TARGET CUDA::cublas OR NOT TARGET CUDA::cublasLt)
  set(cuda_off "cuBLAS was not found beside nvcc: install it (libcublas-dev)")
elseif(RINGZERO_SANITIZE)
  set(cuda_off "not with sanitizers")
endif()

set(architectures ${RINGZERO_CUDA_ARCHITECTURES})
find_program(nvcc_device_query __nvcc_device_query HINTS ${CUDAToolkit_BIN_DIR} NO_CACHE)
if(NOT cuda_off AND NOT architectures AND nvcc_device_query)
  execute_process(COMMAND ${nvcc_device_query} OUTPUT_VARIABLE found ERROR_QUIET RESULT_VARIABLE failed)
  if(failed EQUAL 0)
    string(REGEX MATCHALL "[0-9]+" architectures "${found}")
  endif()
endif()
if(NOT cuda_off AND NOT architectures)
  set(cuda_off "no GPU is in this machine; to build for others: -DRINGZERO_CUDA_ARCHITECTURES=\"80;90\"")
endif()

if(NOT cudasim_off)
  set(CMAKE_CXX_STANDARD 17)
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  foreach(kind RELEASE RELWITHDEBINFO)
    set(CMAKE_CXX_FLAGS_${kind} "${CMAKE_C_FLAGS_${kind}}")
  endforeach()
  enable_language(CXX)
  add_subdirectory(tests/cudasim)
endif()

# A module of host code, and of what its kernels have become. Host code includes NVIDIA's headers alone: which library it meets
# is decided when it is linked. It knows its own name.
function(cuda_module name)
  add_library(ringzero_${name} MODULE ${cuda_c_files} ${ARGN})
  set_target_properties(ringzero_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} LINKER_LANGUAGE CXX
    C_VISIBILITY_PRESET hidden)
  target_compile_definitions(ringzero_${name} PRIVATE RINGZERO_PLUGIN_NAME="${name}")
  target_include_directories(ringzero_${name} SYSTEM PRIVATE ${RINGZERO_CUDA_HEADERS})
  target_link_libraries(ringzero_${name} PRIVATE Threads::Threads m)
  if(NOT RINGZERO_SANITIZE)
    target_link_options(ringzero_${name} PRIVATE LINKER:-z,defs)
  endif()
endfunction()

# Kernels for the simulator: C++ that traps where an address is not aligned, as hardware does, and that counts its lines, when
# asked to. -O1, no points-to analysis: templates of kernels are what takes longest to compile (execute_cuda.cu under
# AddressSanitizer four minutes with that analysis, one without), and the simulator spends its time elsewhere.
function(cudasim_kernels target)
  set(options -x c++ $<IF:$<BOOL:${RINGZERO_COVERAGE}>,-O0,-O1> $<$<CXX_COMPILER_ID:GNU>:-fno-tree-pta>)
  if(NOT RINGZERO_SANITIZE MATCHES "undefined") # which has it, with a message
    list(APPEND options -fsanitize=alignment -fsanitize-undefined-trap-on-error)
  endif()
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${options}")
  target_link_libraries(${target} PRIVATE cudasim)
  add_dependencies(${target} cudasim_device)
  # gcc 12 makes one aligned load of "if aligned, 16 bytes at once, else byte by byte".
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-tree-slp-vectorize>)
  if(RINGZERO_COVERAGE)
    target_compile_definitions(${target} PRIVATE CUDASIM_COVERAGE)
    target_compile_options(${target} PRIVATE --coverage)
    target_link_options(${target} PRIVATE --coverage)
  endif()
endfunction()

if(TARGET cudasim)
  cuda_module(cudasim ${cuda_cu_files})
  cudasim_kernels(ringzero_cudasim ${cuda_cu_files})
endif()

# nvcc is called as a command, not as a language of CMake: that would try it out in every new build tree, for ten seconds.
if(NOT cuda_off)
  list(SORT architectures COMPARE NATURAL)
  list(GET architectures -1 newest)
  set(nvcc_flags -std=c++17 -O3 -lineinfo --fmad=false -I${PROJECT_SOURCE_DIR} -ccbin ${CMAKE_CXX_COMPILER}
    -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-ffp-contract=off)
  foreach(architecture ${architectures})
    list(APPEND nvcc_flags -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(APPEND nvcc_flags -gencode=arch=compute_${newest},code=compute_${newest})

  foreach(file ${cuda_cu_files})
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${file})
    set(object ${PROJECT_BINARY_DIR}/nvcc/${name}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${object} DEPENDS ${file} DEPFILE ${object}.d VERBATIM COMMENT "Building CUDA object ${name}.o"
      COMMAND ${CMAKE_C_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${nvcc_flags} -MD -MF ${object}.d -c ${file} -o ${object})
    list(APPEND cuda_objects ${object})
  endforeach()

  cuda_module(cuda ${cuda_objects})
  set_target_properties(ringzero_cuda PROPERTIES INSTALL_RPATH_USE_LINK_PATH TRUE)
  target_link_libraries(ringzero_cuda PRIVATE CUDA::cudart CUDA::cublas CUDA::cublasLt)
  install(TARGETS ringzero_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
