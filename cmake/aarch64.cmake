# Cross compilation to aarch64 with Debian's compiler and its arm64 libraries (scripts/setup.sh aarch64). Programs run
# under qemu-user, so CTest works as it does natively.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# Highway's NEON target carries the attribute "+crypto"; without it as the baseline, functions that the compiler writes itself
# (constructors of structures of vectors) cannot inline the vector types.
set(CMAKE_CXX_FLAGS_INIT "-march=armv8-a+crypto")
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)

# Headers are shared with the host in /usr/include; libraries and package files come only from the arm64 folders.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_IGNORE_PATH /usr/lib/x86_64-linux-gnu)
set(CMAKE_IGNORE_PREFIX_PATH /usr/local)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
set(PKG_CONFIG_EXECUTABLE /usr/bin/pkg-config)
