import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { loadConfig, loadSettings } from '#config.ts'
import type { ConfigError } from '#core/base/config.ts'
import { effectiveSettings, settingRows } from '#core/base/declared-settings.ts'

const PRODUCTION = {
  NODE_ENV: 'production',
  BASE_URL: 'https://muster.example/',
  JWT_SECRET: 'x'.repeat(32),
  SECRETS_ENCRYPTION_KEY: 'a'.repeat(64),
}

/** Settings of orchestrations and triggers, by their values where none is valid. */
const DEFAULTS = {
  MAX_ORCHESTRATION_RUN_DEPTH: 10,
  ORCHESTRATION_WORKER_CONCURRENCY: 10,
  ORCHESTRATION_ADVANCE_CONCURRENCY: 4,
  ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES: 50,
  ORCHESTRATION_NODE_LEASE_SECONDS: 60,
  ORCHESTRATION_NODE_MAX_DELIVERIES: 5,
  ORCHESTRATION_NODE_TIMEOUT_MS: 600_000,
  ORCHESTRATION_RUN_MAX_STEPS: 10_000,
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: 5000,
  ORCHESTRATION_WAIT_MAX_MS: 120_000,
  /** The environment of the process. */
  ORCHESTRATION_SHUTDOWN_GRACE_MS: null,
  ORCHESTRATION_WORKER_HEARTBEAT_STALE_MS: 30_000,
  TRIGGER_SCHEDULER_INTERVAL_MS: 5000,
  TRIGGER_WORKER_CONCURRENCY: 10,
  TRIGGER_FIRING_LEASE_SECONDS: 60,
  TRIGGER_FIRING_MAX_ATTEMPTS: 3,
  TRIGGER_FIRE_WAIT_MAX_MS: 120_000,
  TRIGGER_HOOK_TOLERANCE_SECONDS: 300,
  TRIGGER_MAX_CAUSATION_DEPTH: 5,
  EVENT_FANOUT_MAX: 10_000,
}

const refuses = (env: Record<string, string>, variable: string) =>
  assert.throws(() => loadConfig(env), { variable }, JSON.stringify(env))

describe('configuration', () => {
  it('reads the settings of every module, each declared in the first folder that reads it', async () => {
    const src = path.join(import.meta.dirname, '../src')
    const floors: Record<string, string[]> = (await import(path.join(src, '../.dependency-cruiser.mjs'))).floors
    /** The floor of a file. Formations are one module; files of no area are on top. */
    const floorOf = (file: string): number => {
      const [area] = file.split('/', 1)
      const index = Object.keys(floors).indexOf(area)
      if (index < 0) return Number.POSITIVE_INFINITY
      if (area === 'formations') return index * 100
      return index * 100 + floors[area].findIndex(folder => file.startsWith(`${area}/${folder}/`))
    }
    const files = fs.readdirSync(src, { recursive: true, encoding: 'utf8' }).filter(file => file.endsWith('.ts'))
    const declared = new Map<string, string>()
    for (const file of files.filter(each => each.endsWith('/settings.ts') && !each.startsWith('operator/')))
      for (const { settings } of Object.values(await import(path.join(src, file))) as { settings?: object }[])
        for (const name of Object.keys(settings ?? {})) declared.set(name, file)
    assert.deepEqual(
      settingRows()
        .map(({ name }) => name)
        .sort(),
      [...declared.keys()].sort(),
    )
    const early = files.flatMap(file =>
      [...fs.readFileSync(path.join(src, file), 'utf8').matchAll(/\bconfig\??\.([A-Z][A-Z0-9_]+)/g)]
        .map(([, name]) => ({ name, file, declaredIn: declared.get(name) as string }))
        .filter(({ declaredIn }) => floorOf(file) < floorOf(declaredIn)),
    )
    assert.deepEqual(early, [])
  })

  it('has the defaults of the table and ignores unknown variables', () => {
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

  it('takes for settings of orchestrations and triggers that make no sense their defaults', () => {
    const of = (value: string) => {
      const env = (names: string[]) => Object.fromEntries(names.map(name => [name, value]))
      const config = loadConfig(env(NUMBERS)) as Record<string, any>
      return NUMBERS.map(name => config[name])
    }
    const NUMBERS = Object.keys(DEFAULTS)
    for (const value of ['', 'many', '-1', '1.5', '0x10'])
      assert.deepEqual(of(value), Object.values(DEFAULTS), JSON.stringify(value))
    assert.deepEqual(
      of('0'),
      Object.entries(DEFAULTS).map(([name, value]) => (name === 'ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES' ? 0 : value)),
    )
    assert.deepEqual(
      of('7'),
      NUMBERS.map(() => 7),
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

  it('names the lists of the egress client that cannot be read', () => {
    for (const [variable, texts] of Object.entries({
      EGRESS_ALLOW_HOSTS: ['10.0.0.0/99', 'a b', 'host:0'],
      EGRESS_DNS_SERVERS: ['ns.test', '192.0.2.1,x', '192.0.2.1:x'],
    }))
      for (const text of texts) assert.throws(() => loadSettings({ [variable]: text }), { variable }, text)
  })

  it('names everything that is wrong, once', () => {
    const env = { ...PRODUCTION, BASE_URL: '', JWT_SECRET: 'short', PORT: '99999', EGRESS_ALLOW_HOSTS: 'a b' }
    assert.throws(
      () => loadSettings({ ...env, WEBHOOK_LEASE_MS: '1000', FAULT_POINTS: 'turn.started=kill' }),
      (error: ConfigError) => {
        const named = error.problems.map(({ variable }) => variable).sort()
        const wrong = ['BASE_URL', 'EGRESS_ALLOW_HOSTS', 'FAULT_POINTS', 'JWT_SECRET', 'PORT', 'WEBHOOK_LEASE_MS']
        assert.deepEqual([named, error.message.split('\n').length], [wrong, wrong.length])
        return true
      },
    )
  })

  it('reads booleans in all their spellings', () => {
    for (const text of ['true', '1', 'on', 'yes', 'TRUE'])
      assert.equal(loadConfig({ AUTO_MIGRATE: text }).AUTO_MIGRATE, true, text)
    for (const text of ['false', '0', 'off', 'no'])
      assert.equal(loadConfig({ AUTO_MIGRATE: text }).AUTO_MIGRATE, false, text)
  })

  it('requires header prefixes that make header names', () => {
    for (const text of ['X-Abc', 'X Abc-', '-\n']) refuses({ HEADER_PREFIX: text }, 'HEADER_PREFIX')
    refuses({ TOOL_CONTEXT_HEADER_PREFIX: 'X Y' }, 'TOOL_CONTEXT_HEADER_PREFIX')
    assert.equal(loadConfig({ HEADER_PREFIX: 'X-A-' }).TOOL_CONTEXT_HEADER_PREFIX, 'X-A-Context-')
  })

  it('requires a lease of webhooks that is longer than an attempt', () => {
    refuses({ WEBHOOK_LEASE_MS: '10000', WEBHOOK_TIMEOUT_MS: '10000' }, 'WEBHOOK_LEASE_MS')
    assert.equal(loadConfig({ WEBHOOK_LEASE_MS: '10001', WEBHOOK_TIMEOUT_MS: '10000' }).WEBHOOK_LEASE_MS, 10_001)
  })

  it('requires its address and its secrets in production', () => {
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
    refuses({ DATABASE_HOST: 'a b' }, 'DATABASE_HOST')
  })

  it('shows URLs without their credentials', () => {
    const set = { EMBEDDING_BASE_URL: 'https://user:hunter2@host/v1', OLLAMA_BASE_URL: 'http://a@b:c@host:1/x@y' }
    const shown = new Map(effectiveSettings(loadConfig(set)).map(({ name, value }) => [name, value]))
    assert.equal(shown.get('EMBEDDING_BASE_URL'), 'https://[redacted]@host/v1')
    assert.equal(shown.get('OLLAMA_BASE_URL'), 'http://[redacted]@host:1/x@y')
    assert.equal(shown.get('OIDC_SCOPES'), 'openid profile email')
  })
})
