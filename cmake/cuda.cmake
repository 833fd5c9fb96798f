# Kernels for NVIDIA GPUs: each image is compiled by nvcc to a fatbin, machine code for MSTAR_CUDA_ARCHS and PTX for later
# cards, and put into the library as read-only data. The library links to nothing of CUDA: the driver is opened at run
# time. Gives MST_CUDA_DEFINITIONS and MST_CUDA_IMAGE_SOURCE, both empty without CUDA.
find_program(MSTAR_NVCC nvcc HINTS ${CMAKE_SOURCE_DIR}/build/nvcc/bin DOC "nvcc 12.0 or newer (tools/get_cuda.sh gets one)")
# Off unless asked for, by the preset cuda or by hand: the images take minutes, and every configuration makes its own.
option(MSTAR_CUDA "build the kernels for NVIDIA GPUs" OFF)
set(MST_CUDA_DEFINITIONS "")
set(MST_CUDA_IMAGE_SOURCE "")
if(NOT MSTAR_CUDA)
    return()
endif()
if(NOT MSTAR_NVCC)
    message(FATAL_ERROR "MSTAR_CUDA is ON and there is no nvcc: set MSTAR_NVCC, or run tools/get_cuda.sh")
endif()

execute_process(COMMAND ${MSTAR_NVCC} --version OUTPUT_VARIABLE nvcc_version)
string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" nvcc_release "${nvcc_version}")
math(EXPR MST_CUDA_MIN_DRIVER "${CMAKE_MATCH_1} * 1000")
set(MSTAR_CUDA_ARCHS "80;90" CACHE STRING "compute capabilities with machine code of their own; later cards take PTX")
set(MST_NVCC_FLAGS -O3 -std=c++17 -fmad=false -I${CMAKE_SOURCE_DIR}/src -Xfatbin=-compress-all)
set(MST_NVCC_PORTABLE "")
foreach(arch IN LISTS MSTAR_CUDA_ARCHS)
    list(APPEND MST_NVCC_PORTABLE -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()
list(GET MSTAR_CUDA_ARCHS 0 mst_first_arch)
list(APPEND MST_NVCC_PORTABLE -gencode=arch=compute_${mst_first_arch},code=compute_${mst_first_arch})
set(MST_CUDA_IMAGE_FOLDER ${CMAKE_BINARY_DIR}/cuda)
file(MAKE_DIRECTORY ${MST_CUDA_IMAGE_FOLDER})
file(GLOB MST_CUDA_ATTN_HEADERS CONFIGURE_DEPENDS src/cuda/attn_*.cuh src/cuda/*.def src/cuda/attn_args.h src/cuda/half_types.cuh
    src/cuda/hopper.cuh src/cuda/overlap.cuh src/cuda/tensor_map.h)
file(GLOB MST_CUDA_ROW_HEADERS CONFIGURE_DEPENDS src/cuda/row_*.h src/cuda/linear_args.h src/cuda/linear_tile.cuh src/cuda/half_types.cuh
    src/cuda/hopper.cuh src/cuda/overlap.cuh src/cuda/tensor_map.h)
set(MST_CUDA_IMAGE_FILES "")
set(mst_image_text "/* Written by cmake/cuda.cmake: the images as data. */\n")

# NAME of the image, its SOURCE, the HEADERS it reads, and more flags
function(mst_cuda_image name source headers)
    set(image ${MST_CUDA_IMAGE_FOLDER}/${name}.fatbin)
    add_custom_command(OUTPUT ${image}
        COMMAND ${MSTAR_NVCC} ${MST_NVCC_FLAGS} ${ARGN} -fatbin -o ${image} ${CMAKE_SOURCE_DIR}/${source}
        DEPENDS ${CMAKE_SOURCE_DIR}/${source} ${headers}
        COMMENT "nvcc ${name}" VERBATIM)
    set(MST_CUDA_IMAGE_FILES ${MST_CUDA_IMAGE_FILES} ${image} PARENT_SCOPE)
    set(symbol mst_cuda_image_${name})
    set(mst_image_text "${mst_image_text}__asm__(\".section .rodata\\n.balign 64\\n.global ${symbol}\\n.hidden ${symbol}\\n${symbol}:\\n.incbin \\\"${image}\\\"\\n.previous\\n\");\n" PARENT_SCOPE)
endfunction()

mst_cuda_image(rows src/cuda/row_kernels.cu "${MST_CUDA_ROW_HEADERS}" ${MST_NVCC_PORTABLE})
# Hopper's own matrix instructions, which other cards have not
mst_cuda_image(linear src/cuda/linear_kernels.cu "${MST_CUDA_ROW_HEADERS}" -gencode=arch=compute_90a,code=sm_90a)
mst_cuda_image(attn_group src/cuda/attn_group.cu "${MST_CUDA_ATTN_HEADERS}" -gencode=arch=compute_90a,code=sm_90a)
mst_cuda_image(attn_hopper src/cuda/attn_hopper.cu "${MST_CUDA_ATTN_HEADERS}" -gencode=arch=compute_90a,code=sm_90a)
mst_cuda_image(attn_reference src/cuda/attn_reference.cu "${MST_CUDA_ATTN_HEADERS}" ${MST_NVCC_PORTABLE})
foreach(hd RANGE 16 256 16)
    mst_cuda_image(attn_hd${hd} src/cuda/attn_portable.cu "${MST_CUDA_ATTN_HEADERS}" ${MST_NVCC_PORTABLE} -DMST_ATTN_HD=${hd})
endforeach()
add_custom_target(cuda_images DEPENDS ${MST_CUDA_IMAGE_FILES}) # all kernels, and nothing of the library
set(MST_CUDA_IMAGE_SOURCE ${CMAKE_BINARY_DIR}/cuda/images.c)
file(GENERATE OUTPUT ${MST_CUDA_IMAGE_SOURCE} CONTENT "${mst_image_text}typedef int mst_not_empty;\n")
set_source_files_properties(${MST_CUDA_IMAGE_SOURCE} PROPERTIES OBJECT_DEPENDS "${MST_CUDA_IMAGE_FILES}")
set(MST_CUDA_DEFINITIONS MST_HAVE_CUDA=1 MST_CUDA_MIN_DRIVER=${MST_CUDA_MIN_DRIVER})
