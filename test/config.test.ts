import assert from 'node:assert/strict'
import { loadConfig } from '../src/config.ts'
import { silentLog } from '../src/core/process/log.ts'
import { openServices } from '../src/core/process/open-services.ts'

const PRODUCTION = {
  NODE_ENV: 'production',
  BASE_URL: 'https://muster.example/',
  JWT_SECRET: 'x'.repeat(32),
  SECRETS_ENCRYPTION_KEY: 'a'.repeat(64),
}

const refuses = (env: Record<string, string>, variable: string) =>
  assert.throws(() => loadConfig(env), { variable }, JSON.stringify(env))

describe('configuration', () => {
  it('has the defaults of the table and ignores what it does not know', () => {
    const config = loadConfig({ SOMETHING_ELSE: '1' })
    assert.deepEqual(
      [config.PORT, config.HOST, config.BASE_URL, config.baseUrlGiven, config.DOCS_BASE_URL],
      [5047, '0.0.0.0', 'http://localhost:5047', false, 'http://localhost:5047/docs'],
    )
    assert.deepEqual(
      [config.HTTP_JSON_LIMIT_BYTES, config.SYNC_WAIT_SECONDS, config.SHUTDOWN_GRACE_MS, config.TRUST_PROXY],
      [10_485_760, 300, 30_000, false],
    )
    assert.deepEqual(
      [config.WEBHOOK_TIMEOUT_MS, config.WEBHOOK_LEASE_MS, config.EVENT_DATA_MAX_BYTES, config.AUDIT_RETENTION_DAYS],
      [10_000, 60_000, 0, 365],
    )
  })

  it('names the variable whose value is invalid', () => {
    refuses({ PORT: '5e3' }, 'PORT')
    refuses({ PORT: '99999' }, 'PORT')
    refuses({ NODE_ENV: 'staging' }, 'NODE_ENV')
    refuses({ BASE_URL: 'muster' }, 'BASE_URL')
    refuses({ DOCS_BASE_URL: 'muster docs' }, 'DOCS_BASE_URL')
    refuses({ TRUST_PROXY: 'some' }, 'TRUST_PROXY')
    refuses({ AUTO_MIGRATE: 'maybe' }, 'AUTO_MIGRATE')
    refuses({ WORKER_KINDS: 'delivery,nothing' }, 'WORKER_KINDS')
    refuses({ SECRETS_ENCRYPTION_KEY: 'aa' }, 'SECRETS_ENCRYPTION_KEY')
    refuses({ SECRETS_ENCRYPTION_KEY: `${'a'.repeat(64)},${'b'.repeat(64)}` }, 'SECRETS_ENCRYPTION_KEY')
    refuses({ SECRETS_ENCRYPTION_KEY_PREVIOUS: `${'a'.repeat(64)},b` }, 'SECRETS_ENCRYPTION_KEY_PREVIOUS')
  })

  it('names the allow-list of the egress client when it cannot be read, before a connection is opened', async () => {
    for (const EGRESS_ALLOW_HOSTS of ['10.0.0.0/99', 'a b', 'host:0']) {
      const config = loadConfig({ EGRESS_ALLOW_HOSTS, DATABASE_URL: 'postgres://nobody@127.0.0.1:1/none' })
      const opening = openServices(config, { log: silentLog(), role: 'cli' })
      await assert.rejects(opening, { variable: 'EGRESS_ALLOW_HOSTS' })
    }
  })

  it('names the name servers of the egress client when one is no address', async () => {
    for (const EGRESS_DNS_SERVERS of ['ns.test', '192.0.2.1,x', '192.0.2.1:x']) {
      const config = loadConfig({ EGRESS_DNS_SERVERS, DATABASE_URL: 'postgres://nobody@127.0.0.1:1/none' })
      const opening = openServices(config, { log: silentLog(), role: 'cli' })
      await assert.rejects(opening, { variable: 'EGRESS_DNS_SERVERS' })
    }
  })

  it('reads booleans in all their spellings', () => {
    for (const text of ['true', '1', 'on', 'yes', 'TRUE'])
      assert.equal(loadConfig({ AUTO_MIGRATE: text }).AUTO_MIGRATE, true, text)
    for (const text of ['false', '0', 'off', 'no'])
      assert.equal(loadConfig({ AUTO_MIGRATE: text }).AUTO_MIGRATE, false, text)
  })

  it('wants header prefixes that make header names', () => {
    for (const text of ['X-Abc', 'X Abc-', '-\n']) refuses({ HEADER_PREFIX: text }, 'HEADER_PREFIX')
    refuses({ TOOL_CONTEXT_HEADER_PREFIX: 'X Y' }, 'TOOL_CONTEXT_HEADER_PREFIX')
    assert.equal(loadConfig({ HEADER_PREFIX: 'X-A-' }).TOOL_CONTEXT_HEADER_PREFIX, 'X-A-Context-')
  })

  it('wants a lease of webhooks that outlasts an attempt', () => {
    refuses({ WEBHOOK_LEASE_MS: '10000', WEBHOOK_TIMEOUT_MS: '10000' }, 'WEBHOOK_LEASE_MS')
    assert.equal(loadConfig({ WEBHOOK_LEASE_MS: '10001', WEBHOOK_TIMEOUT_MS: '10000' }).WEBHOOK_LEASE_MS, 10_001)
  })

  it('wants its address and its secrets in production', () => {
    assert.equal(loadConfig(PRODUCTION).BASE_URL, 'https://muster.example')
    for (const name of ['BASE_URL', 'JWT_SECRET', 'SECRETS_ENCRYPTION_KEY'])
      refuses({ ...PRODUCTION, [name]: '' }, name)
    refuses({ ...PRODUCTION, JWT_SECRET: 'x'.repeat(31) }, 'JWT_SECRET')
    refuses({ ...PRODUCTION, FAULT_POINTS: 'turn.started=kill' }, 'FAULT_POINTS')
    assert.notEqual(loadConfig({}).JWT_SECRET, loadConfig({}).JWT_SECRET)
  })

  it('prefers DATABASE_URL to its parts, and quotes these', () => {
    const parts = { DATABASE_HOST: 'db', DATABASE_NAME: 'a b', DATABASE_USER: 'u', DATABASE_PASSWORD: 'p@ss/w' }
    assert.equal(loadConfig(parts).DATABASE_URL, 'postgres://u:p%40ss%2Fw@db:5432/a%20b')
    assert.equal(loadConfig({ ...parts, DATABASE_URL: 'postgres://x/y' }).DATABASE_URL, 'postgres://x/y')
  })
})
