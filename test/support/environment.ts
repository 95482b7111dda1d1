/** The URL of a database by TCP, for proxies between a process and the server. */
export function tcpUrl(databaseUrl: string): URL {
  const url = new URL(databaseUrl)
  url.searchParams.delete('host')
  return url
}

/** Replaces the server in a URL by a pooler. */
export function pooledUrl(databaseUrl: string, port: string | number): string {
  const url = tcpUrl(databaseUrl)
  url.host = `127.0.0.1:${port}`
  return url.href
}

/** Telemetry of a run with `--spans`: every span goes to its collector. */
const spansEnvironment = (): Record<string, string> =>
  process.env.TEST_SPANS
    ? {
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: `${process.env.TEST_SPANS}/v1/traces`,
        OTEL_TRACES_SAMPLER: 'always_on',
        OTEL_BSP_SCHEDULE_DELAY: '50',
        OTEL_BSP_MAX_QUEUE_SIZE: '100000',
      }
    : {}

/** The server of a URL. */
export function serverOf(databaseUrl: string): string {
  const { host, searchParams } = new URL(databaseUrl)
  return `${searchParams.get('host')} ${host}`
}

const isOfTests = (databaseUrl: string): boolean =>
  databaseUrl !== '' && serverOf(databaseUrl) === serverOf(process.env.TEST_DATABASE_URL as string)

/**
 * Addresses of a database in a run with `--pooler`: for databases of the tests' server, statements go through the pooler of the port in
 * TEST_POOLER.
 */
const databaseEnvironment = (databaseUrl: string): Record<string, string> =>
  process.env.TEST_POOLER && isOfTests(databaseUrl)
    ? { DATABASE_URL: pooledUrl(databaseUrl, process.env.TEST_POOLER), DATABASE_LISTEN_URL: databaseUrl }
    : { DATABASE_URL: databaseUrl }

/** The environment every test process starts from. */
export const testEnvironment = (databaseUrl: string): Record<string, string> => ({
  NODE_ENV: 'test',
  ...databaseEnvironment(databaseUrl),
  PORT: '0',
  HOST: '127.0.0.1',
  WORKER_HEALTH_PORT: '0',
  LOG_LEVEL: 'info',
  AUTO_MIGRATE: 'false',
  JWT_SECRET: 'a secret of the tests that is long enough',
  SECRETS_ENCRYPTION_KEY: '00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff',
  EGRESS_ALLOW_HOSTS: '127.0.0.1,localhost',
  DATABASE_POOL_MAX: '20',
  // Turns fail without a wait for their model.
  PROVIDER_MAX_RETRIES: '2',
  ...spansEnvironment(),
  // Without cells in the database it changes nothing.
  ...(process.env.TEST_CELLS && { CELLS: 'true' }),
})
