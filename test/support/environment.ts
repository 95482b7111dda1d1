/** The environment every test process starts from. */
export const testEnvironment = (databaseUrl: string): Record<string, string> => ({
  NODE_ENV: 'test',
  DATABASE_URL: databaseUrl,
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
})
