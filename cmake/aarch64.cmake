# aarch64.cmake - toolchain of the aarch64 preset: Debian's cross compiler, the libraries that
# tools/get_arm64.sh unpacked, and qemu-user to run the tests.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64;-L;/usr/aarch64-linux-gnu)

set(MST_ARM64_ROOT ${CMAKE_CURRENT_LIST_DIR}/../build/arm64/root)
set(ENV{PKG_CONFIG_LIBDIR} ${MST_ARM64_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${MST_ARM64_ROOT})
