#!/bin/sh
# Builds llama.cpp for one backend, as the wheel of the llama-cpp-python that pyproject.toml pins, and prints its path.
# Once for every set of flags, compiler and processor: wheels are kept in the user's cache (LLORCH_WHEELS says where else).
# The one place where llama.cpp's build flags are told; CMAKE_ARGS of the environment come after them, and so win.
#
# Usage: build_llama.sh cpu|cuda|metal|vulkan [--portable]
#            --portable: for processors other than this one; the images are built so
#        build_llama.sh --flags cpu|cuda|metal|vulkan [--portable]
#            print the flags, build nothing
#        build_llama.sh --check-runtime FILE…
#            fail unless each library takes the C++ runtime of the system
# Needs a C++ compiler and Python (PYTHON says which); cuda: nvcc and cuBLAS, but neither a GPU nor its driver where
# LLORCH_CUDA_ARCHITECTURES names the GPUs; vulkan: libvulkan-dev 1.3.272 or newer (Debian 13's, Ubuntu 24.04's), glslc and
# spirv-headers; metal: Xcode's tools.
set -eu

usage() {
    echo "usage: build_llama.sh [--flags] cpu|cuda|metal|vulkan [--portable]" >&2
    exit 2
}

fail() {
    echo "build_llama: $1" >&2
    exit 1
}

# A library with a C++ runtime of its own crashes in a process where another library has brought one, as numpy does: the
# two share some objects (STB_GNU_UNIQUE) and not the code that made them.
check_runtime() {
    command -v readelf >/dev/null || return 0
    for library; do
        readelf -d "$library" | grep -q 'NEEDED.*\[lib\(std\)\{0,1\}c++\.so' ||
            fail "$library has a C++ runtime of its own and would crash beside numpy: build it with a compiler that links libstdc++ dynamically (CXX=/usr/bin/g++)"
    done
}
if [ "${1:-}" = --check-runtime ]; then
    shift
    [ $# -gt 0 ] || usage
    check_runtime "$@"
    exit
fi

only_flags=
portable=
backend=
for argument; do
    case $argument in
        --flags) only_flags=1 ;;
        --portable) portable=1 ;;
        cpu | cuda | metal | vulkan) [ -z "$backend" ] || usage; backend=$argument ;;
        *) usage ;;
    esac
done
[ -n "$backend" ] || usage

flags=
flag() { flags="$flags $1"; }

# ── for every backend ─────────────────────────────────────────────────────────────────────────────
# Nothing of ours uses images, HTTP or remote devices: less to build, no libssl, libibverbs or libnccl picked up where
# the building machine happens to have them and missed where the wheel is installed.
flag -DLLAVA_BUILD=OFF
flag -DLLAMA_OPENSSL=OFF
flag -DGGML_RPC=OFF
flag -DGGML_RPC_RDMA=OFF
flag -DGGML_CUDA_NCCL=OFF

# ── the processor ─────────────────────────────────────────────────────────────────────────────────
machine=$(uname -m)
if [ -n "$portable" ]; then
    # Not for the builder's own processor, which a user's may be older than: one module per generation instead, of which
    # ggml loads the best one at run time. The modules must lie beside libllama, where the worker looks for them.
    flag -DGGML_NATIVE=OFF
    flag -DGGML_BACKEND_DL=ON
    flag -DGGML_CPU_ALL_VARIANTS=ON
    flag -DCMAKE_INSTALL_BINDIR=llama_cpp/lib
    flag -DCMAKE_INSTALL_LIBDIR=llama_cpp/lib
    flag -DCMAKE_INSTALL_INCLUDEDIR=llama_cpp/include
elif [ "$machine" = x86_64 ]; then
    # Not AMX: its kernels round otherwise for a token alone than for several, so an answer would depend on the company;
    # and GCC before 12.4, 13.3 and 14 compiles them to a crash (GCC bug 114098).
    # Not AVX-512 FP16: with it ggml's attention adds up 128 numbers at a time, and those of a shorter head, as of 64, one
    # by one. Behind 1,000 cells a token takes up to 2.5 times as long.
    without=
    for feature in amx-tile amx-int8 amx-bf16 avx512fp16; do
        if echo | "${CC:-cc}" "-mno-$feature" -E - >/dev/null 2>&1; then
            without="$without -mno-$feature"
        fi
    done
    if [ -n "$without" ]; then
        flag "-DCMAKE_C_FLAGS='${without# }'"
        flag "-DCMAKE_CXX_FLAGS='${without# }'"
    fi
fi

# ── the backend ───────────────────────────────────────────────────────────────────────────────────
case $backend in
    cuda)
        flag -DGGML_CUDA=ON
        # Where NVIDIA's packages put nvcc, and no shell looks.
        PATH=$PATH:/usr/local/cuda/bin
        # As CMake names them: "80-real;90-real". Without: this machine's own GPU; of a portable build llama.cpp's choice.
        if [ -n "${LLORCH_CUDA_ARCHITECTURES:-}" ]; then
            flag "-DCMAKE_CUDA_ARCHITECTURES='$LLORCH_CUDA_ARCHITECTURES'"
        elif [ -z "$portable" ]; then
            flag -DCMAKE_CUDA_ARCHITECTURES=native
        fi
        ;;
    metal)
        flag -DGGML_METAL=ON
        # The kernels inside the library: there is no second file to find.
        flag -DGGML_METAL_EMBED_LIBRARY=ON
        # Apple's BLAS, for what is computed on the CPU.
        flag -DGGML_ACCELERATE=ON
        ;;
    vulkan) flag -DGGML_VULKAN=ON ;;
esac

flags="${flags# }${CMAKE_ARGS:+ $CMAKE_ARGS}"
if [ -n "$only_flags" ]; then
    echo "$flags"
    exit
fi

# ── what must be there: without it the build fails too, but later and in other words ─────────────
defines() { echo "#include <$1>" | "${CXX:-c++}" -x c++ -E -dM - 2>/dev/null | grep -q "$2"; }

check_tools() {
    command -v "${CXX:-c++}" >/dev/null || fail "no C++ compiler: install g++"
    case $backend in
        cuda)
            [ -n "${CUDACXX:-}" ] || command -v nvcc >/dev/null ||
                fail "no nvcc: install the CUDA toolkit, or say in PATH or CUDACXX where it is"
            ;;
        vulkan)
            defines vulkan/vulkan_core.h VK_EXT_layer_settings ||
                fail "no Vulkan headers, or older than 1.3.272: install libvulkan-dev of Debian 13 or Ubuntu 24.04"
            defines spirv/unified1/spirv.hpp spirv_HPP || fail "no SPIR-V headers: install spirv-headers"
            command -v glslc >/dev/null || fail "no compiler of shaders: install glslc"
            ;;
    esac
}

cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
version=$(sed -n 's/^ *"llama-cpp-python==\(.*\)",$/\1/p' pyproject.toml)
if [ -n "$portable" ]; then
    processor=any
elif [ -r /proc/cpuinfo ]; then
    processor=$(grep -m 1 -E '^(flags|Features)' /proc/cpuinfo || true)
else
    processor=$(sysctl -n machdep.cpu.brand_string 2>/dev/null || true)
fi
case $flags in
    *ARCHITECTURES=native*) gpu=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true) ;;
    *) gpu= ;;
esac
made_of=$({ echo "$flags $processor $machine${gpu:+ $gpu}"; "${CXX:-c++}" --version || true; } 2>&1 | cksum | cut -d ' ' -f 1)
wheels=${LLORCH_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/llorch-worker/wheels}/$version-$backend-$made_of

if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
    check_tools
    echo "==> building llama.cpp for $backend, once, which takes minutes" >&2
    mkdir -p "$wheels"
    new=$(mktemp -d "$wheels/building.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    # pip's own cache of wheels knows nothing of flags.
    CMAKE_ARGS=$flags "$python" -m pip wheel --disable-pip-version-check --no-cache-dir --no-deps \
        --no-binary llama-cpp-python --wheel-dir "$new" "llama-cpp-python==$version" >"$wheels/build.log" 2>&1 || {
        grep -m 5 -E ' error: |Error' "$wheels/build.log" >&2 || tail -n 20 "$wheels/build.log" >&2
        echo "build_llama: it failed; all of it is in $wheels/build.log" >&2
        exit 1
    }
    "$python" -m zipfile -e "$new"/*.whl "$new/inside"
    for library in "$new"/inside/llama_cpp/lib/libllama.so; do
        [ ! -e "$library" ] || check_runtime "$library"
    done
    mv "$new"/*.whl "$wheels/"
fi
ls "$wheels"/*.whl
