#!/bin/sh
# Runs glslc, the compiler of Vulkan's shaders, and reports that it does not know NVIDIA's extensions for matrices.
# llama.cpp then leaves out the kernels that only NVIDIA's own driver can run. Dockerfile.metal has no such driver.
case "$*" in
    *feature-tests/coopmat2*)
        echo "extension not supported: GL_NV_cooperative_matrix2" >&2
        echo "extension not supported: GL_NV_cooperative_matrix_decode_vector" >&2
        exit 1
        ;;
esac
exec /usr/bin/glslc "$@"
