# Helpers shared by every folder.

# Warnings for all of pith's own code.
add_library(pith_options INTERFACE)
target_include_directories(pith_options INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_options(pith_options INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
                       $<$<BOOL:${PITH_WERROR}>:-Werror>)
# g++ 12 warns falsely about "literal" + std::string at -O3 (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(pith_options INTERFACE -Wno-restrict)
endif()

# Fuzzing needs every library instrumented (fuzz/CMakeLists.txt).
if(PITH_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "PITH_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++-14")
  endif()
  target_compile_options(pith_options INTERFACE -g -fno-omit-frame-pointer -fno-sanitize-recover=all
                         -fsanitize=fuzzer-no-link,address,undefined)
  target_link_options(pith_options INTERFACE -fsanitize=address,undefined)
endif()

# No silent fusing of a product and a sum: which operations are fused is written in the code, so that quantizers, kernels and
# their references give the same bits. (x86 code outside the kernels has no fused instruction to begin with.)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  target_compile_options(pith_options INTERFACE -ffp-contract=off)
endif()

# pith_library(room SOURCES a.cc ... DEPS target ...): the static library pith_<room> of one folder of src/.
function(pith_library room)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(pith_${room} STATIC ${ARG_SOURCES})
  target_link_libraries(pith_${room} PUBLIC pith_options ${ARG_DEPS})
endfunction()

# pith_test(name SOURCES a_test.cc ... DEPS target ... LABELS label ...): a GoogleTest program; each of its cases becomes a CTest test.
function(pith_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)  # an empty value would swallow the property after it
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} pith_options GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE PITH_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(TARGET pith_test_support)
    target_link_libraries(${name} PRIVATE pith_test_support)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
endfunction()
