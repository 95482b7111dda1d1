# syntax=docker/dockerfile:1

# The digest is an index of images for amd64 and arm64.
FROM node:24.21.0-bookworm-slim@sha256:0e0ff40c39bc087845bfb27465a0df4ea419520094bc35842ff83dd8cbe6f9b6 AS packages
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
COPY client/package.json ./client/
COPY console/package.json ./console/
# Production packages alone, without what only debuggers, compilers and require() read: Node runs no TypeScript below node_modules.
RUN npm ci --omit=dev --ignore-scripts && find node_modules -type f -name '*.map' -delete && find node_modules -type f -name '*.*ts' -regex '.*\.[cm]?ts' -delete && rm -r node_modules/gpt-tokenizer/cjs node_modules/gpt-tokenizer/data

FROM node:24.21.0-bookworm-slim@sha256:0e0ff40c39bc087845bfb27465a0df4ea419520094bc35842ff83dd8cbe6f9b6 AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
COPY client/package.json ./client/
COPY console/package.json ./console/
RUN npm ci --ignore-scripts
COPY tsconfig.json ./
COPY cli ./cli
COPY client ./client
COPY console ./console
COPY bin ./bin
COPY LICENSE ./
COPY scripts ./scripts
COPY src ./src
# The console, the command line, the packages, and the interactive reference in docs/dist; and a home that may be written.
RUN node scripts/build.ts && mkdir /data

FROM node:24.21.0-bookworm-slim@sha256:0e0ff40c39bc087845bfb27465a0df4ea419520094bc35842ff83dd8cbe6f9b6
LABEL org.opencontainers.image.title="Muster"
LABEL org.opencontainers.image.description="Self-hosted back end for AI agent applications on PostgreSQL alone"
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.version="0.1.0"
# Written are /tmp, with what Node has compiled and uploads that are staged, and /data alone.
ENV NODE_ENV=production NODE_COMPILE_CACHE=/tmp/compile HOME=/data
WORKDIR /app
COPY --from=build --chown=10001:10001 /data /data
COPY --from=packages /app/node_modules ./node_modules
COPY package.json LICENSE CHANGELOG.md ./
COPY bin ./bin
COPY jobs ./jobs
COPY sql ./sql
COPY src ./src
# The manual, served at /docs and read by MCP clients.
COPY docs ./docs
COPY --from=build /app/docs/dist ./docs/dist
COPY --from=build /app/console/dist ./console/dist
COPY --from=build /app/packages/dist ./packages/dist
# The command line, for `muster agents list` in a container.
COPY --from=build /app/cli/dist ./cli/dist
COPY --from=build /app/client/commands.json ./client/commands.json
COPY --from=build /app/cli/price-book.json ./cli/price-book.json
USER 10001:10001
EXPOSE 5047 5048
VOLUME /data
HEALTHCHECK --interval=15s --timeout=5s CMD ["node", "bin/health.mjs"]
# The argument is web, worker or migrate, or a command of muster.
ENTRYPOINT ["bin/container"]
CMD ["web"]
