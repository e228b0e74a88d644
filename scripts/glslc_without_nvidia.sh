#!/bin/sh
# The compiler of Vulkan's shaders, made to say that it does not know NVIDIA's extensions for matrices. llama.cpp then
# leaves out the variants of its kernels that NVIDIA's own driver alone can run: Dockerfile.metal has no such driver.
case "$*" in
    *feature-tests/coopmat2*)
        echo "extension not supported: GL_NV_cooperative_matrix2" >&2
        echo "extension not supported: GL_NV_cooperative_matrix_decode_vector" >&2
        exit 1
        ;;
esac
exec /usr/bin/glslc "$@"
