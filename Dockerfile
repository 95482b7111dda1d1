# syntax=docker/dockerfile:1

FROM node:24-bookworm-slim AS packages
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
COPY client/package.json ./client/
COPY console/package.json ./console/
# Without development dependencies, among them the embedded PostgreSQL of `npm start`.
RUN npm ci --omit=dev --ignore-scripts

FROM node:24-bookworm-slim AS build
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
# The console, the command line, the packages, and the interactive reference in docs/dist.
RUN node scripts/build.ts

FROM node:24-bookworm-slim
# /tmp is the only place that is written: what Node has compiled, and uploads that are staged.
ENV NODE_ENV=production NODE_COMPILE_CACHE=/tmp/compile
WORKDIR /app
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
USER node
EXPOSE 5047 5048
# Web; a worker runs `bin/launch jobs/worker.ts`, and `bin/muster.mjs migrate` brings the database to this version.
CMD ["bin/launch", "src/web.ts"]
