# An example in an image without Rust and without Python.
#
#   docker build -t digits .                          # for the CPU: about 0.5 GB
#   docker build --build-arg CUDA=1 -t digits .       # for NVIDIA GPUs: about 3.6 GB
#   docker run --rm digits
#   docker run --rm --gpus all digits                 # needs the NVIDIA Container Toolkit
#
# For a program of your own, copy this file, and build your package in place of `examples`.

# A tag can be moved to another image. For builds that can be repeated, name the images by their digests:
#
#   docker buildx imagetools inspect rust:1.95-bookworm        # prints "Digest: sha256:…"
#   docker build --build-arg BUILD_IMAGE=rust@sha256:… --build-arg BASE_IMAGE=debian@sha256:… -t digits .
ARG BUILD_IMAGE=rust:1.95-bookworm
ARG BASE_IMAGE=debian:bookworm-slim

# hadolint ignore=DL3006
FROM $BUILD_IMAGE AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-pip \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# In a layer of its own, so that a change of the program downloads nothing.
COPY scripts/libtorch.py scripts/
ARG CUDA=0
RUN python3 scripts/libtorch.py "$(if [ "$CUDA" = 1 ]; then echo cuda; else echo cpu; fi)"
COPY . .
ARG PROGRAM=digits
RUN cargo build --release --locked -p examples --bin "$PROGRAM" \
    && python3 scripts/bundle.py "target/release/$PROGRAM" /bundle \
    && mv "/bundle/$PROGRAM" /bundle/program

# hadolint ignore=DL3006
FROM $BASE_IMAGE
COPY --from=build /bundle /opt/program
# Read by the NVIDIA Container Toolkit, which brings the driver: no image of CUDA is needed.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --uid 1000 --create-home trainer
USER 1000
# The run folder of the demo is `runs`, in here: mount a volume to keep it.
WORKDIR /home/trainer
ENTRYPOINT ["/opt/program/program"]
