# install.cmake - what `cmake --install` puts where: libraries, headers, program, man page, the
# pkg-config file and the CMake package. Both package files find their prefix from where they lie,
# so an installed tree may be moved.
include(CMakePackageConfigHelpers)

add_library(mstar::mstar ALIAS mstar_shared)
set_target_properties(mstar_shared PROPERTIES EXPORT_NAME mstar)
set(MST_CMAKE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/mstar)

install(TARGETS mstar_shared mstar_static EXPORT mstarTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/mstar.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/mstar DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT mstarTargets NAMESPACE mstar:: DESTINATION ${MST_CMAKE_FOLDER})
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/mstarConfig.cmake.in
                              ${CMAKE_BINARY_DIR}/mstarConfig.cmake INSTALL_DESTINATION ${MST_CMAKE_FOLDER})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/mstarConfigVersion.cmake
                                 VERSION ${MSTAR_VERSION} COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/mstarConfig.cmake ${CMAKE_BINARY_DIR}/mstarConfigVersion.cmake
        DESTINATION ${MST_CMAKE_FOLDER})

file(RELATIVE_PATH MST_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" MST_PREFIX_FROM_PC ${MST_PREFIX_FROM_PC})
configure_file(${CMAKE_SOURCE_DIR}/cmake/mstar.pc.in ${CMAKE_BINARY_DIR}/mstar.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/mstar.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The man page comes from the program's own option table.
if(TARGET mstar)
    install(TARGETS mstar RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    if(NOT CMAKE_CROSSCOMPILING)
        add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/mstar.1
                           COMMAND mstar help --man > ${CMAKE_BINARY_DIR}/mstar.1.new
                           COMMAND ${CMAKE_COMMAND} -E rename ${CMAKE_BINARY_DIR}/mstar.1.new
                                   ${CMAKE_BINARY_DIR}/mstar.1
                           DEPENDS mstar VERBATIM COMMENT "Writing the man page")
        add_custom_target(manpage ALL DEPENDS ${CMAKE_BINARY_DIR}/mstar.1)
        install(FILES ${CMAKE_BINARY_DIR}/mstar.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    endif()
endif()
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
