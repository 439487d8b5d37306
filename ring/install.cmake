# The library that others link: libringzero.a and .so, made of the objects of verbs and ring; headers, ringzero.pc,
# the program.
#
#   include/ringzero/ring.h           #include "ring/ring.h": what users include, <ringzero/ring.h>; one such line per public header
#   include/ringzero/{verbs,ring}/    the headers themselves, as they are in the source
#   lib/libringzero.{a,so}            lib/pkgconfig/ringzero.pc            bin/ringzero
include(GNUInstallDirs)

set(public_headers ring/ring.h ring/plan.h verbs/status.h verbs/dtype.h verbs/device.h verbs/bootstrap.h verbs/launch.h
  verbs/log.h verbs/transport.h verbs/fifo.h verbs/bell.h)
# A header that a public one includes is public too.
foreach(header ${public_headers})
  file(STRINGS ${PROJECT_SOURCE_DIR}/${header} includes REGEX "^#include \"")
  foreach(line ${includes})
    string(REGEX REPLACE "^#include \"(.*)\".*" "\\1" included "${line}")
    list(APPEND public_headers ${included})
  endforeach()
endforeach()
list(REMOVE_DUPLICATES public_headers)

# Compiled once for the program and both libraries; within one of them every call goes straight to its function.
set_target_properties(verbs ring PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_compile_options(verbs PRIVATE -fno-semantic-interposition)
target_compile_options(ring PRIVATE -fno-semantic-interposition)
foreach(kind STATIC SHARED)
  string(TOLOWER ringzero_${kind} library)
  add_library(${library} ${kind} $<TARGET_OBJECTS:verbs> $<TARGET_OBJECTS:ring>)
  set_target_properties(${library} PROPERTIES OUTPUT_NAME ringzero LINKER_LANGUAGE C)
  target_link_libraries(${library} PRIVATE $<TARGET_PROPERTY:verbs,INTERFACE_LINK_LIBRARIES>)
  install(TARGETS ${library} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()
set(map ${PROJECT_SOURCE_DIR}/ring/ringzero.map)
set_target_properties(ringzero_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${map})
target_link_options(ringzero_shared PRIVATE -Wl,--version-script=${map})

foreach(header ${public_headers})
  get_filename_component(folder ${header} DIRECTORY)
  get_filename_component(name ${header} NAME)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/forward/${name} CONTENT "#include \"${header}\"\n")
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ringzero/${folder})
  install(FILES ${PROJECT_BINARY_DIR}/forward/${name} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ringzero)
endforeach()

# The .pc finds its prefix from where it lies, so an installation may be moved.
set(pkgconfig_directory ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH RINGZERO_PC_TO_PREFIX /p/${pkgconfig_directory} /p)
string(REGEX REPLACE "/$" "" RINGZERO_PC_TO_PREFIX "${RINGZERO_PC_TO_PREFIX}")
configure_file(${PROJECT_SOURCE_DIR}/ring/ringzero.pc.in ${PROJECT_BINARY_DIR}/ringzero.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ringzero.pc DESTINATION ${pkgconfig_directory})
install(TARGETS ringzero RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
