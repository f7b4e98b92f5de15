# One image for all sides: the coordinator, the owner's client, and Flower's server and node. Build it in a clone:
#     make image          (or: docker build -t sordino .)
FROM python:3.12-slim AS build
WORKDIR /source
RUN pip install --no-cache-dir "hatchling>=1.27"
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.12-slim
# PyTorch for processors.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt /tmp/
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c /tmp/constraints.txt \
    "$(echo /wheels/sordino-*.whl)[flower,learn,service]" && rm /tmp/constraints.txt
# Two accounts, for the two sides of a machine (compose.yaml in its folder). They own nothing in the image.
RUN for side in sordino:10001 flower:10002; do \
      groupadd --gid "${side#*:}" "${side%:*}" \
      && useradd --uid "${side#*:}" --gid "${side#*:}" --no-create-home --home-dir /tmp --shell /usr/sbin/nologin "${side%:*}"; \
    done && mkdir /machine
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER sordino
WORKDIR /machine
ENTRYPOINT ["sordino"]
CMD ["--help"]
