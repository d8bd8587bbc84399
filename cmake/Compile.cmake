# How every native target is compiled, and which files belong to which instruction set.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2")  # asserts stay on: they guard impossible states and cost nothing measurable

# Files named *_<isa>.cpp are compiled for one instruction set: those of the target with its flags, others not at all.
set(TIDEMILL_EVERY_ISA avx2 avx512 amx neon neon_dot)
set(TIDEMILL_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(TIDEMILL_FLAGS_avx512 ${TIDEMILL_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 warns of operands that its own intrinsics leave open.
  list(APPEND TIDEMILL_FLAGS_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
set(TIDEMILL_FLAGS_amx ${TIDEMILL_FLAGS_avx512})  # its own instructions are written in assembly
set(TIDEMILL_FLAGS_neon "")  # every aarch64 processor has it
set(TIDEMILL_FLAGS_neon_dot -march=armv8.2-a+dotprod)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(TIDEMILL_ISAS avx2 avx512 amx)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  set(TIDEMILL_ISAS neon neon_dot)
else()
  set(TIDEMILL_ISAS "")
endif()

# Fused multiply-adds are written out where they are meant: a compiler that contracts a * b + c on its own may do so
# differently in two instances of one template, and equal requests would get unequal bits.
function(tidemill_compile_options target)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/csrc")
  target_compile_options(${target} PRIVATE -Wall -Wextra -ffp-contract=off -fno-math-errno)
  if(TIDEMILL_TESTS)
    # A field added in the middle of a struct must not shift the values of an older initialiser.
    target_compile_options(${target} PRIVATE -Werror=missing-field-initializers)
  endif()
  if(TIDEMILL_SANITIZE)
    # -O1: at -O2 GCC 12 takes minutes for each file of kernels, all of whose checks are inlined.
    target_compile_options(${target} PRIVATE -fsanitize=${TIDEMILL_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer -g -O1)
    target_link_options(${target} PRIVATE -fsanitize=${TIDEMILL_SANITIZE})
  endif()
endfunction()

# Gives *_<isa>.cpp files the flags of their instruction set, or drops them from the list on other processors.
function(tidemill_select_isa sources_variable)
  set(selected ${${sources_variable}})
  foreach(isa IN LISTS TIDEMILL_EVERY_ISA)
    set(sources ${${sources_variable}})
    list(FILTER sources INCLUDE REGEX "_${isa}\\.cpp$")
    if(NOT sources)
      continue()
    elseif(isa IN_LIST TIDEMILL_ISAS)
      set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${TIDEMILL_FLAGS_${isa}}")
    else()
      list(REMOVE_ITEM selected ${sources})
    endif()
  endforeach()
  set(${sources_variable} ${selected} PARENT_SCOPE)
endfunction()

# A file compiled with flags of its own must not export shared inline functions: the linker keeps one copy of each, and
# if it keeps this one, the portable path runs e.g. AVX2 code on a processor without it.
function(tidemill_add_isa_leak_test library)
  if(NOT CMAKE_NM OR TIDEMILL_SANITIZE)
    return()
  endif()
  foreach(isa IN LISTS TIDEMILL_ISAS)
    if(TIDEMILL_FLAGS_${isa})
      add_test(NAME isa_leak_${isa} COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DLIBRARY=$<TARGET_FILE:${library}>
                                            -DISA=${isa} -P "${PROJECT_SOURCE_DIR}/cmake/IsaLeak.cmake")
    endif()
  endforeach()
endfunction()
