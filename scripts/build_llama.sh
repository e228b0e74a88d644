#!/bin/sh
# Builds llama.cpp for one backend, as the wheel of the llama-cpp-python that pyproject.toml pins, and prints its path.
# Each set of flags, compiler and processor is built once. Wheels are kept in the user's cache, or in LLORCH_WHEELS.
# This is the one place that has llama.cpp's build flags. CMAKE_ARGS of the environment come after them and override them.
#
# Usage: build_llama.sh cpu|cuda|metal|vulkan [--portable] [--tools]
#            --portable: also for other processors than this one, as in the images
#            --tools: also build llama-server, llama-bench and llama-batched-bench, which use the wheel's own libraries, and
#                     print their folder on a second line
#        build_llama.sh --flags cpu|cuda|metal|vulkan [--portable] [--tools]
#            print the flags, build nothing
#        build_llama.sh --compiler [cpu|cuda|metal|vulkan] [--portable]
#            print the C and the C++ compiler that would be used, build nothing
#        build_llama.sh --check-runtime FILE…
#            fail unless each library takes the C++ runtime of the system
# CC and CXX choose the compilers. Without them, if the build will have Intel's AMX, the script takes the first compiler of
# a list that compiles AMX soundly. If there is none, it builds without AMX and says so.
# The build has the patches in patches/; LLORCH_STOCK=1 leaves them out.
# Needs a C++ compiler and Python (PYTHON names another), and
#   cuda: nvcc and cuBLAS; a GPU and its driver only if LLORCH_CUDA_ARCHITECTURES does not name the GPUs
#   vulkan: libvulkan-dev 1.3.272 or newer (Debian 13's, Ubuntu 24.04's), glslc and spirv-headers
#   metal: Xcode's tools
set -eu

usage() {
    echo "usage: build_llama.sh [--flags|--compiler] cpu|cuda|metal|vulkan [--portable] [--tools]" >&2
    exit 2
}

fail() {
    echo "build_llama: $1" >&2
    exit 1
}

# A library with its own C++ runtime crashes in a process where another library has brought one, as numpy does. The two
# runtimes share some objects (STB_GNU_UNIQUE) but not the code that made them. A library without such objects is in C.
check_runtime() {
    command -v readelf >/dev/null || return 0
    for library; do
        readelf -d "$library" | grep -q 'NEEDED.*\[lib\(std\)\{0,1\}c++\.so' ||
            ! readelf --dyn-syms -W "$library" | grep -q ' UNIQUE ' ||
            fail "$library has a C++ runtime of its own and would crash beside numpy: build it with a compiler that links libstdc++ dynamically (CXX=/usr/bin/g++)"
    done
}
if [ "${1:-}" = --check-runtime ]; then
    shift
    [ $# -gt 0 ] || usage
    check_runtime "$@"
    exit
fi

printed=
portable=
tools=
backend=
for argument; do
    case $argument in
        --flags | --compiler) [ -z "$printed" ] || usage; printed=${argument#--} ;;
        --portable) portable=1 ;;
        --tools) tools=1 ;;
        cpu | cuda | metal | vulkan) [ -z "$backend" ] || usage; backend=$argument ;;
        *) usage ;;
    esac
done
[ -n "$backend" ] || [ "$printed" = compiler ] || usage
scripts=$(cd "$(dirname "$0")" && pwd)
machine=$(uname -m)

# ── the compiler ──────────────────────────────────────────────────────────────────────────────────
# GCC before 12.4, 13.3 and 14 compiles AMX to a crash (GCC bug 114098): it assumes that _tile_loadconfig reads 8 bytes, and
# removes the code that writes the other 56. clang before 16 compiles AMX well but has another name for it, so that ggml
# leaves its code out. The script tries a compiler; it does not go by the version.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A shell that a signal ends does not run the trap of EXIT, unless it exits by itself.
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# True if the build will have AMX: on x86-64 a portable build always has a module for it, others if this processor has it.
wants_amx() {
    [ "$machine" = x86_64 ] || return 1
    [ -n "$portable" ] || has_amx
}
has_amx() { grep -q -m 1 '^flags.* amx_int8' /proc/cpuinfo 2>/dev/null; }

# Prints the C++ compiler that belongs to a C compiler: clang++-19 to clang-19.
partner() {
    case ${1##*/} in
        *clang*) echo "$1" | sed 's/\(.*\)clang/\1clang++/' ;;
        *gcc*) echo "$1" | sed 's/\(.*\)gcc/\1g++/' ;;
        *) echo c++ ;;
    esac
}

# Prints the C compilers to try, best first.
candidates() {
    if [ -n "${CC:-}${CXX:-}" ]; then
        echo "${CC:-cc}"
    else
        echo cc clang-19 clang-18 clang-17 clang-16 clang gcc-14 gcc-13
    fi
}

is_there() { command -v "$1" >/dev/null && command -v "$2" >/dev/null; }

# True if a compiler has OpenMP, which clang has in a separate package. Leaves a program in $scratch/openmp.
check_openmp() {
    printf '#include <omp.h>\nint main() { return omp_get_max_threads() == 0; }\n' >"$scratch/openmp.cpp"
    "$1" -fopenmp "$scratch/openmp.cpp" -o "$scratch/openmp" 2>/dev/null
}

# Returns 2 if the compiler has no OpenMP, and 1 if it compiles AMX unsoundly.
check_amx() {
    check_openmp "$2" || return 2
    # shellcheck disable=SC2016 # not the shell's $: the assembler's
    # In the compiled code, "ldtilecfg" is replaced by a check of the 64 bytes that it would read. Any processor can run it.
    "$1" -O3 -DNDEBUG -mamx-tile -mamx-int8 -DLLORCH_CONFIG -S "$scripts/tile_product.c" -o "$scratch/config.s" 2>/dev/null &&
        sed 's/^[[:space:]]*ldtilecfg[[:space:]]*\(.*\)$/leaq \1, %rdi; subq $256, %rsp; andq $-64, %rsp; call check_config/' \
            "$scratch/config.s" >"$scratch/called.s" &&
        grep -q 'call check_config' "$scratch/called.s" &&
        "$1" "$scratch/called.s" -o "$scratch/config" 2>/dev/null && "$scratch/config" || return 1
    has_amx || return 0
    "$1" -O3 -DNDEBUG -mamx-tile -mamx-int8 "$scripts/tile_product.c" -o "$scratch/product" 2>/dev/null &&
        "$scratch/product" >/dev/null 2>&1 || return 1
}

# Sets cc, cxx and has_sound_amx.
choose_compiler() {
    cc=
    cxx=
    has_sound_amx=
    without_openmp=
    for candidate in $(candidates); do
        beside=${CXX:-$(partner "$candidate")}
        is_there "$candidate" "$beside" || continue
        if [ -z "$cc" ]; then
            cc=$candidate
            cxx=$beside
        fi
        wants_amx || return 0
        judgement=0
        check_amx "$candidate" "$beside" || judgement=$?
        case $judgement in
            0)
                cc=$candidate
                cxx=$beside
                has_sound_amx=1
                return 0
                ;;
            2) without_openmp="$without_openmp $candidate" ;;
        esac
    done
    # If there is no compiler, check_tools reports it.
    cc=${cc:-${CC:-cc}}
    cxx=${cxx:-${CXX:-c++}}
    ! wants_amx || {
        echo "build_llama: no compiler here compiles Intel's AMX soundly ($cc does not): llama.cpp is built without it, and"
        echo "build_llama: computes prompts at a quarter of the speed on a processor with AMX; install clang-19 and libomp-19-dev"
        [ -z "$without_openmp" ] || echo "build_llama: without OpenMP, so not used:$without_openmp"
    } >&2
}
choose_compiler
if [ "$printed" = compiler ]; then
    echo "$cc $cxx"
    exit
fi

flags=
flag() { flags="$flags $1"; }

# ── for every backend ─────────────────────────────────────────────────────────────────────────────
# The worker does not use llama.cpp's code for images, HTTP or remote devices. With it the build takes longer, and the wheel
# would need libssl, libibverbs or libnccl if the building machine happens to have them.
flag -DLLAVA_BUILD=OFF
flag -DLLAMA_OPENSSL=OFF
flag -DGGML_RPC=OFF
flag -DGGML_RPC_RDMA=OFF
flag -DGGML_CUDA_NCCL=OFF

# ── the processor ─────────────────────────────────────────────────────────────────────────────────
if [ -n "$portable" ]; then
    # A user's processor may be older than the builder's. So there is one module per generation, and ggml loads the best one
    # at run time. The modules must be in libllama's folder, where the worker looks for them.
    flag -DGGML_NATIVE=OFF
    flag -DGGML_BACKEND_DL=ON
    flag -DGGML_CPU_ALL_VARIANTS=ON
    flag -DCMAKE_INSTALL_BINDIR=llama_cpp/lib
    flag -DCMAKE_INSTALL_LIBDIR=llama_cpp/lib
    flag -DCMAKE_INSTALL_INCLUDEDIR=llama_cpp/include
elif [ "$machine" = x86_64 ]; then
    # AVX-512 FP16 is left out. With it ggml's attention adds up 128 numbers at a time, and the numbers of a shorter head,
    # such as 64, one by one: after 1,000 cells a token takes up to 2.5 times as long.
    without=avx512fp16
    [ -n "$has_sound_amx" ] || without="amx-tile amx-int8 amx-bf16 $without"
    left_out=
    for feature in $without; do
        if echo | "$cc" "-mno-$feature" -E - >/dev/null 2>&1; then
            left_out="$left_out -mno-$feature"
        fi
    done
    if [ -n "$left_out" ]; then
        flag "-DCMAKE_C_FLAGS='${left_out# }'"
        flag "-DCMAKE_CXX_FLAGS='${left_out# }'"
    fi
fi

if [ -n "$tools" ]; then
    flag -DLLAMA_BUILD_TOOLS=ON
    flag -DLLAMA_BUILD_SERVER=ON
    # The server's page would be fetched or built with npm.
    flag -DLLAMA_BUILD_UI=OFF
    flag -DLLAMA_USE_PREBUILT_UI=OFF
    # The tools find the libraries beside them, so that their folder can be moved.
    flag -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON
fi

# ── the backend ───────────────────────────────────────────────────────────────────────────────────
case $backend in
    cuda)
        flag -DGGML_CUDA=ON
        # Some compilers link the C++ runtime statically, unless the system's is there first (check_runtime says why not).
        flag "-DCMAKE_SHARED_LINKER_FLAGS='-Wl,--push-state,--no-as-needed,-l:libstdc++.so.6,--pop-state'"
        # NVIDIA's packages put nvcc into a folder that is not on PATH.
        PATH=$PATH:/usr/local/cuda/bin
        # The names are CMake's: "80-real;90-real". The default is this machine's GPU, and in a portable build llama.cpp's choice.
        if [ -n "${LLORCH_CUDA_ARCHITECTURES:-}" ]; then
            flag "-DCMAKE_CUDA_ARCHITECTURES='$LLORCH_CUDA_ARCHITECTURES'"
        elif [ -z "$portable" ]; then
            flag -DCMAKE_CUDA_ARCHITECTURES=native
        fi
        ;;
    metal)
        flag -DGGML_METAL=ON
        # The kernels are inside the library, so it needs no second file.
        flag -DGGML_METAL_EMBED_LIBRARY=ON
        # Apple's BLAS, for work on the CPU.
        flag -DGGML_ACCELERATE=ON
        ;;
    vulkan) flag -DGGML_VULKAN=ON ;;
esac

flags="${flags# }${CMAKE_ARGS:+ $CMAKE_ARGS}"
if [ "$printed" = flags ]; then
    echo "$flags"
    exit
fi

# ── the tools: without them the build fails too, but later and with less clear errors ────────────
defines() { echo "#include <$1>" | "$cxx" -x c++ -E -dM - 2>/dev/null | grep -q "$2"; }

check_tools() {
    command -v "$cxx" >/dev/null || fail "no C++ compiler: install g++"
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

cd "$scripts/.."
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
patches=
sources=
if [ -z "${LLORCH_STOCK:-}" ]; then
    for patch in patches/*.patch; do
        [ ! -e "$patch" ] || patches="$patches $patch"
    done
    [ -z "$patches" ] || sources=$(echo patches/ggml-cpu/*)
fi
# shellcheck disable=SC2086 # names of patches, split at spaces
made_of=$({
    echo "$flags $processor $machine${gpu:+ $gpu} $cc $cxx${has_sound_amx:+ AMX}"
    "$cxx" --version || true
    [ -z "$patches" ] || cat $patches $sources
} 2>&1 | cksum | cut -d ' ' -f 1)
wheels=${LLORCH_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/llorch-worker/wheels}/$version-$backend-$made_of

# Puts clang's OpenMP runtime into llama.cpp's folder, where the loader looks first. Every system has GCC's runtime, but
# clang's would come with all of LLVM.
bring_openmp() {
    check_openmp "$cxx" && command -v readelf >/dev/null || return 0
    runtime=$(readelf -d "$scratch/openmp" | sed -n 's/.*NEEDED.*\[\(libomp\..*\)\].*/\1/p')
    [ -n "$runtime" ] || return 0
    cp -L "$("$cxx" -print-file-name="$runtime")" "$scratch/source/$runtime" || return 1
    brought=$runtime
    for licence in /usr/share/doc/libomp5*/copyright; do
        [ ! -e "$licence" ] || { cp "$licence" "$scratch/source/$runtime.LICENSE" && brought="$brought $runtime.LICENSE"; }
    done
    echo "install(FILES $brought DESTINATION llama_cpp/lib)" >>"$scratch/source/CMakeLists.txt"
}

# Makes the peers and the benchmarks part of the build, and none of llama.cpp's other tools. EXCLUDE_FROM_ALL also leaves
# out what they would install, so that the wheel has the same files with them as without.
add_tools() {
    sed -i.as_it_was 's/^\( *add_subdirectory(tools\))$/\1 EXCLUDE_FROM_ALL)/' "$scratch/source/vendor/llama.cpp/CMakeLists.txt" &&
        grep -q 'add_subdirectory(tools EXCLUDE_FROM_ALL)' "$scratch/source/vendor/llama.cpp/CMakeLists.txt" &&
        echo 'add_custom_target(tools ALL DEPENDS llama-server llama-bench llama-batched-bench)' >>"$scratch/source/CMakeLists.txt"
}

# Unpacks llama-cpp-python's source distribution into $scratch/source and patches it.
unpack() {
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
        --dest "$scratch" "llama-cpp-python==$version" && mkdir "$scratch/source" &&
        tar -xzf "$scratch"/llama_cpp_python-*.tar.gz -C "$scratch/source" --strip-components 1 || return 1
    # shellcheck disable=SC2086 # names of patches, split at spaces
    [ -z "$patches" ] || "$python" scripts/apply_patches.py "$version" "$scratch/source/vendor/llama.cpp" $patches || return 1
    [ -z "$portable" ] || bring_openmp || return 1
    [ -z "$tools" ] || add_tools || return 1
    # shellcheck disable=SC2086 # names of files
    [ -z "$sources" ] || cp $sources "$scratch/source/vendor/llama.cpp/ggml/src/ggml-cpu/" || return 1
    if [ -n "$portable" ] && [ -z "$has_sound_amx" ] && [ "$machine" = x86_64 ]; then
        # The module with AMX would crash. Without it, a processor that has AMX uses the module of the generation before.
        sed -i.as_it_was '/^ *ggml_add_cpu_backend_variant(sapphirerapids /d' "$scratch/source/vendor/llama.cpp/ggml/src/CMakeLists.txt"
    fi
}

if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
    check_tools
    echo "==> building llama.cpp for $backend with $cxx, once, which takes minutes; its log: $wheels/build.log" >&2
    mkdir -p "$wheels"
    new=$(mktemp -d "$wheels/building.XXXXXX")
    trap 'rm -rf "$new" "$scratch"' EXIT
    # No cache, because pip's cache of wheels ignores the flags.
    { unpack && CC=$cc CXX=$cxx CMAKE_ARGS=$flags "$python" -m pip wheel --disable-pip-version-check --no-cache-dir \
        --no-deps --config-settings "build-dir=$scratch/tree" --wheel-dir "$new" "$scratch/source"; } >"$wheels/build.log" 2>&1 || {
        grep -m 5 -E ' error: |Error' "$wheels/build.log" >&2 || tail -n 20 "$wheels/build.log" >&2
        echo "build_llama: the build failed; see $wheels/build.log" >&2
        exit 1
    }
    "$python" -m zipfile -e "$new"/*.whl "$new/inside"
    for library in "$new"/inside/llama_cpp/lib/*.so; do
        [ ! -e "$library" ] || check_runtime "$library"
    done
    [ -z "$tools" ] || { rm -rf "$wheels/bin" && mv "$scratch/tree/bin" "$wheels/bin"; }
    # The wheel is last: with it the build counts as whole.
    mv "$new"/*.whl "$wheels/"
fi
ls "$wheels"/*.whl
[ -z "$tools" ] || echo "$wheels/bin"
