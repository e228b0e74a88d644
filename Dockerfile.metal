# llorch-worker on a Mac's GPU, as near as a container comes to it. What this is not: no container reaches Metal. This is
# a Vulkan build for Linux (arm64; amd64 for its tests) whose calls leave the virtual machine and become Metal outside:
#
#   llama.cpp → Vulkan → Mesa's Venus driver → virtio-gpu → libkrun on macOS → MoltenVK → Metal
#
# so it needs a virtual machine with that road: podman machine with the provider libkrun, or krunkit under Lima or Colima.
# Others (Apple's `container`, Docker Desktop without its own VMM) have none; there it computes on the CPU.
# Expect three quarters of what Metal gives natively. scripts/install_metal.sh is the native way, and the better one.
#
#   podman build -f Dockerfile.metal -t llorch-worker:metal .
#   podman run --rm --read-only --cap-drop ALL --device /dev/dri -p 8080:8080 -v "$PWD/models:/models:ro" \
#       llorch-worker:metal --model x.gguf --device vulkan
#
# `--device vulkan` refuses to start without a GPU; without it the worker takes the CPU and says so. Where the answers are
# wrong or the worker ends in a step, try `--flash-attn off`.
# Limits: not verified on a Mac. Apple silicon has pages of 16 KiB, and a guest's Mesa must align memory to them; Debian's
# does not, so a BASE with a Mesa that does may be needed. Elsewhere it is the image for any GPU that Mesa drives through
# /dev/dri: AMD's and Intel's.
#
# Arguments: BASE   a Debian with Vulkan headers 1.3.272 or newer, such as trixie; or one derived from it.
#            WHEEL  build: llama.cpp is compiled here, in ten minutes and more;
#                   prebuilt: its wheel lies in dist/wheels/vulkan (scripts/build_llama.sh vulkan --portable made it).
# Half of its 500 MB are Mesa's drivers and the LLVM that they compile with. docs/images.md tells the rest.

ARG BASE=debian:trixie-slim
ARG WHEEL=build

# ── what the image begins with, and what builds it ────────────────────────────────────────────────
FROM ${BASE} AS python
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        ca-certificates libgomp1 libvulkan1 mesa-vulkan-drivers python3 \
    # Drivers of Windows, of emulators, of old Intel GPUs and of NVIDIA's, which have an image of their own; what draws.
    && for driver in dzn gfxstream intel_hasvk nouveau; do \
        rm -f /usr/lib/*/libvulkan_$driver.so /usr/share/vulkan/icd.d/${driver}_*; done \
    && rm -rf /usr/share/vulkan/explicit_layer.d /usr/lib/*/libVkLayer_MESA_overlay.so \
        /usr/lib/*/libVkLayer_INTEL_nullhw.so /usr/share/X11/locale /usr/lib/python3*/pydoc_data /usr/lib/python3*/test \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/*

FROM python AS tools
RUN apt-get update && apt-get install --yes --no-install-recommends binutils python3-venv && python3 -m venv /tools

# ── llama.cpp ─────────────────────────────────────────────────────────────────────────────────────
FROM tools AS wheel-build
RUN apt-get install --yes --no-install-recommends g++ glslc libvulkan-dev spirv-headers
WORKDIR /source
COPY pyproject.toml ./
COPY scripts/glslc_without_nvidia.sh /usr/local/bin/glslc
COPY patches/ patches/
COPY scripts/build_llama.sh scripts/apply_patches.py scripts/tile_product.c scripts/
RUN PYTHON=/tools/bin/python LLORCH_WHEELS=/built scripts/build_llama.sh vulkan --portable \
    && mkdir /wheels && mv /built/*/*.whl /wheels/

FROM scratch AS wheel-prebuilt
COPY dist/wheels/vulkan/ /wheels/

# hadolint ignore=DL3006
FROM wheel-${WHEEL} AS wheel

# ── the libraries, which change rarely, and the worker, which changes often: a layer each ─────────
FROM tools AS libraries
WORKDIR /source
COPY pyproject.toml constraints.txt ./
COPY scripts/image_libraries.sh scripts/
COPY --from=wheel /wheels/ /wheels/
ARG EXTRAS=
RUN scripts/image_libraries.sh /opt/llorch-worker /wheels/*.whl "$EXTRAS"

FROM libraries AS worker
COPY LICENSE README.md models.toml ./
COPY worker/ worker/
COPY parity/ parity/
COPY client/ client/
RUN /tools/bin/python -m pip --python /opt/llorch-worker/bin/python install \
    --no-cache-dir --disable-pip-version-check --no-deps --root /installed .

# ── the image ─────────────────────────────────────────────────────────────────────────────────────
FROM python
COPY --from=libraries /opt/llorch-worker /opt/llorch-worker
COPY --from=worker /installed/opt/llorch-worker /opt/llorch-worker

# Nothing is written: the bytecode is compiled, the driver keeps no compiled shaders, the file system may be read-only.
ENV PATH=/opt/llorch-worker/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    MESA_SHADER_CACHE_DISABLE=true \
    HOME=/nonexistent \
    LLORCH_HOST=0.0.0.0 \
    LLORCH_MODELS_DIR=/models
# A number, so that Kubernetes can see that it is not root; in no group that owns anything. Where /dev/dri/renderD128 is
# its group's alone, `--group-add` that group's number.
USER 10001:10001
# Root's: nobody can put anything into the working directory that would be loaded.
WORKDIR /opt/llorch-worker
EXPOSE 8080
STOPSIGNAL SIGTERM
# Alive, not ready: a worker that loads its model must not be restarted.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 CMD ["python3", "-c", \
    "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(f\"http://127.0.0.1:{os.environ.get('LLORCH_PORT', 8080)}/livez\", timeout=4)"]
ENTRYPOINT ["llorch-worker"]

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="llorch-worker" \
      org.opencontainers.image.description="Serves one quantised GGUF model to a pool manager, on GPUs through Vulkan" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
