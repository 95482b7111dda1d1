import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { parseEnv } from 'node:util'
import { newId } from '#core/base/ids.ts'
import { silentLog } from '#core/base/log.ts'
import { release } from '#core/base/release.ts'
import { openPool } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { handler } from '#core/work/handler.ts'
import { startWorkers } from '#core/work/worker.ts'
import { expireQueue } from '#execution/approvals/queue.ts'
import { createTurn } from '#execution/generations/request/create.ts'
import { findEmbedded, startEmbedded } from '#local/postgres.ts'
import { checkBuild } from '#operator/doctor-build.ts'
import { withSettings } from '#operator/settings.ts'
import { eventually, startApp } from '../support/app.ts'
import { launch, run } from '../support/commands.ts'
import { startEmbeddingServer } from '../support/embedding-server.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster as inHost } from '../support/hosts.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'
import { startReceiver } from '../support/receiver.ts'
import { createdBy } from '../support/replies.ts'
import { startS3 } from '../support/s3.ts'
import { forSuite } from '../support/suite.ts'

const root = path.resolve(import.meta.dirname, '../..')

type Check = { name: string; status: string; detail: string; fix?: string }

describe('muster', function () {
  this.timeout(60_000)

  const app = forSuite(() => startApp({ workers: ['delivery'] }))

  const muster = (args: string[], env: Record<string, string> = {}) =>
    inHost(args, { ...testEnvironment(app.databaseUrl), ...env })

  /** The same in a separate process, as a user runs it; test/bin/docs.test.ts runs every command so. */
  const alone = (args: string[], env: Record<string, string> = {}) =>
    run('bin/muster.ts', args, { ...testEnvironment(app.databaseUrl), ...env })

  /** Runs a command that prints JSON and must succeed. */
  const json = async (...args: string[]) => {
    const { code, stdout, stderr } = await muster([...args, '--json'])
    assert.equal(code, 0, stderr)
    return JSON.parse(stdout)
  }

  const diagnosis = async (env: Record<string, string> = {}) => {
    const { code, stdout, stderr } = await muster(['doctor', '--json'], env)
    assert.notEqual(stdout, '', stderr)
    const { ok, checks } = JSON.parse(stdout) as { ok: boolean; checks: Check[] }
    assert.equal(code, ok ? 0 : 1)
    return { ok, checks, of: (name: string) => checks.filter(check => check.name === name) }
  }

  describe('usage', () => {
    it('exits 2 for an unknown command or flag and 0 for help', async () => {
      for (const args of [
        [],
        ['nonsense'],
        ['up', '--port', '70000'],
        ['reprocess', 'deliveries', '--from', 'yesterday'],
        ['reprocess', 'deliveries', '--limit', '0'],
        ['reprocess', 'generations', '--status', 'completed'],
        ['reprocess', 'dead-letters', 'inspect'],
        ['llm-double', 'serve', '--dims', '4'],
      ])
        assert.equal((await muster(args)).code, 2, args.join(' '))
      assert.equal((await alone(['nonsense'])).code, 2)
      const help = await alone(['--help'])
      assert.equal(help.code, 0)
      for (const command of ['up', 'migrate', 'bootstrap', 'doctor', 'reprocess', 'secrets', 'settings', 'llm-double'])
        assert.match(help.stdout, new RegExp(`^  ${command}\\b`, 'm'))
      assert.match(help.stdout, /Examples:/)
      assert.equal((await muster(['--version'])).stdout, '0.1.0\n')
    })

    it('exits 1 and names a setting that cannot be used', async () => {
      const { code, stderr } = await alone(['migrate'], { DATABASE_POOL_MAX: 'many' })
      assert.equal(code, 1)
      assert.match(stderr, /DATABASE_POOL_MAX: must be an integer/)
    })

    it('says what to do when no database answers', async () => {
      const { code, stderr } = await muster(['migrate'], { DATABASE_URL: 'postgres://a:b@127.0.0.1:1/none' })
      assert.equal(code, 1)
      assert.match(stderr, /127\.0\.0\.1:1\/none cannot be migrated: .*ECONNREFUSED/)
      assert.match(stderr, /DATABASE_URL/)
    })

    it('checks a script for the model double', async () => {
      assert.equal((await muster(['llm-double', 'check', 'nowhere.yaml'])).code, 1)
    })
  })

  it('init-env adds secrets to an environment file for its owner alone, and keeps the values in it', async () => {
    const folder = fs.mkdtempSync(path.join(tmpdir(), 'init-env-'))
    try {
      const valuesOf = (file: string) => parseEnv(fs.readFileSync(file, 'utf8'))
      const fresh = path.join(folder, 'fresh.env')
      const made = await muster(['init-env', fresh])
      const added = 'BASE_URL, JWT_SECRET, SECRETS_ENCRYPTION_KEY, POSTGRES_PASSWORD'
      assert.deepEqual([made.code, made.stdout], [0, `added ${added} to ${fresh}\n`])
      assert.equal(fs.statSync(fresh).mode & 0o777, 0o600)
      const { JWT_SECRET, SECRETS_ENCRYPTION_KEY, POSTGRES_PASSWORD } = valuesOf(fresh)
      assert.ok(Buffer.byteLength(JWT_SECRET as string) >= 32)
      assert.match(SECRETS_ENCRYPTION_KEY as string, /^[0-9a-f]{64}$/)
      assert.match(POSTGRES_PASSWORD as string, /^[0-9a-z]{32,}$/)
      const before = fs.readFileSync(fresh, 'utf8')
      assert.match((await muster(['init-env', fresh])).stdout, /has all values/)
      assert.equal(fs.readFileSync(fresh, 'utf8'), before)

      const given = path.join(folder, 'given.env')
      fs.writeFileSync(given, `${fs.readFileSync(path.join(root, '.env.example'), 'utf8')}POSTGRES_PASSWORD="mine"`, {
        mode: 0o644,
      })
      assert.match(
        (await muster(['init-env', given])).stdout,
        /^added BASE_URL, JWT_SECRET, SECRETS_ENCRYPTION_KEY to /,
      )
      assert.equal(fs.statSync(given).mode & 0o777, 0o600)
      const filled = valuesOf(given)
      assert.deepEqual([filled.POSTGRES_PASSWORD, filled.JWT_SECRET === JWT_SECRET], ['mine', false])
      const lines = (file: string) => fs.readFileSync(file, 'utf8').trim().split('\n').length
      assert.equal(lines(given), lines(path.join(root, '.env.example')) + 1)
      assert.deepEqual(fs.readdirSync(folder).sort(), ['fresh.env', 'given.env'])
    } finally {
      fs.rmSync(folder, { recursive: true })
    }
  })

  describe('an empty database', () => {
    let env: Record<string, string>
    before(async () => {
      env = { DATABASE_URL: await createDatabase() }
    })
    after(() => dropDatabase(new URL(env.DATABASE_URL).pathname.slice(1)))

    it('is diagnosed without being changed', async () => {
      const { ok, of } = await diagnosis(env)
      assert.equal(ok, false)
      assert.equal(of('migrations')[0].status, 'fail')
      assert.match(of('migrations')[0].fix as string, /muster migrate/)
      assert.equal((await diagnosis(env)).of('migrations')[0].detail, of('migrations')[0].detail)
    })

    it('is migrated once when several processes start together', async () => {
      const runs = await Promise.all([0, 1, 2].map(() => alone(['migrate', '--json'], env)))
      const ran = runs.map(({ code, stdout, stderr }) => {
        assert.equal(code, 0, stderr)
        return JSON.parse(stdout).ran.length as number
      })
      const files = fs.readdirSync(path.join(root, 'sql')).length
      assert.deepEqual(
        ran.sort((a, b) => a - b),
        [0, 0, files],
      )
    })

    it('is waited for while another process migrates, and says so then alone', async () => {
      const pool = await openPool({ databaseUrl: env.DATABASE_URL, connections: 1, applicationName: 'test' })
      const lock = (work: () => Promise<void>) =>
        pool.connect(async connection => {
          await connection.query(sql.unsafe`select pg_advisory_lock(7310542201)`)
          await work()
          await connection.query(sql.unsafe`select pg_advisory_unlock(7310542201)`)
        })
      const migrating = () => launch('bin/muster.ts', ['migrate'], { ...testEnvironment(app.databaseUrl), ...env })
      let waiting = migrating()
      await waiting.ended
      assert.equal(waiting.output.stderr, '')
      await lock(async () => {
        waiting = migrating()
        await eventually(() => waiting.output.stderr.includes('another process migrates'), { within: 30_000 })
      })
      assert.equal(await waiting.ended, 0)
      await pool.end()
    })

    it('gets its first admin once', async () => {
      const short = await muster(['bootstrap', '--username', 'ada', '--password', 'short'], env)
      assert.equal(short.code, 1)
      assert.match(short.stderr, /password/)
      const unnamed = await muster(['bootstrap'], env)
      assert.equal(unnamed.code, 1)
      assert.match(unnamed.stderr, /no username given/)
      const withPassword = { ...env, ADMIN_PASSWORD: 'a fine password' }
      const made = await muster(['bootstrap', '--username', 'ada', '--json'], withPassword)
      assert.equal(made.code, 0, made.stderr)
      assert.equal(JSON.parse(made.stdout).role, 'admin')
      const again = await muster(['bootstrap', '--username', 'eve'], withPassword)
      assert.equal(again.code, 1)
      assert.match(again.stderr, /BOOTSTRAP_ALREADY_COMPLETED/)
    })
  })

  it('without DATABASE_URL works on the database that up keeps, running or not', async () => {
    const base = fs.mkdtempSync(path.join(tmpdir(), 'muster-cli-'))
    fs.chmodSync(base, 0o755)
    const dir = path.join(base, 'postgres')
    const migrate = () => run('bin/muster.ts', ['migrate', '--data', base, '--json'])
    try {
      await (await startEmbedded({ dir })).stop()
      const stopped = await migrate()
      assert.equal(stopped.code, 0, stopped.stderr)
      assert.equal(await findEmbedded(dir), null)
      const server = await startEmbedded({ dir })
      assert.deepEqual(JSON.parse((await migrate()).stdout).ran, [])
      assert.equal(await findEmbedded(dir), server.url)
      await server.stop()
    } finally {
      fs.rmSync(base, { recursive: true, force: true })
    }
  })

  describe('doctor', () => {
    const beat = (kinds: string[], age: string) =>
      app.pool.query(sql.unsafe`
        insert into worker_heartbeats (instance_id, kinds, started_at, beat_at)
        values (${kinds.join('+')}, ${sql.array(kinds, 'text')}, now(), now() - ${age}::interval)
        on conflict (instance_id) do update set beat_at = excluded.beat_at`)

    it('names the concerns that no living worker runs', async () => {
      await beat(['delivery'], '1 second')
      await beat(['ingestion', 'generation', 'orchestration', 'trigger', 'evaluation', 'snapshot'], '1 hour')
      const ill = await diagnosis()
      assert.equal(ill.ok, false)
      assert.match(
        ill.of('workers')[0].detail,
        /runs ingestion, generation, orchestration, trigger, evaluation, snapshot$/,
      )
      assert.match(ill.of('workers')[1].detail, /ingestion\+generation\+orchestration\+trigger\+evaluation\+snapshot/)
    })

    it('reports processes of another release, as during an upgrade', async () => {
      const beatOf = (instance: string, version: string, age: string) =>
        app.pool.query(sql.unsafe`
          insert into worker_heartbeats (instance_id, kinds, version, started_at, beat_at)
          values (${instance}, '{}', ${version}, now(), now() - ${age}::interval)`)
      await beatOf('web of now', release, '1 second')
      await beatOf('web of then', '0.0.8', '1 hour')
      assert.deepEqual((await diagnosis()).of('versions'), [])
      await beatOf('web of before', '0.0.9', '1 second')
      const [{ status, detail, fix }] = (await diagnosis()).of('versions')
      assert.equal(status, 'warn')
      assert.match(detail, /^live processes by release: 0\.0\.9 \(1\), \S+ \(\d+\); this command is of \S+$/)
      assert.match(fix ?? '', /replace the processes/)
      await app.pool.query(sql.unsafe`delete from worker_heartbeats where instance_id like 'web of %'`)
    })

    it('finds nothing wrong with a deployment that works', async () => {
      await beat(['delivery'], '1 second')
      await beat(['ingestion', 'generation', 'orchestration', 'trigger', 'evaluation', 'snapshot'], '1 second')
      // What other tests have left waiting, for longer than it should where they take long.
      await app.pool.query(sql.unsafe`delete from pgboss.job_common`)
      const { ok, checks } = await diagnosis({ BASE_URL: 'https://muster.example', EMBEDDING_PROVIDER: 'local' })
      assert.equal(ok, true, JSON.stringify(checks))
      assert.deepEqual(
        checks.map(({ name, status }) => `${name} ${status}`),
        [
          'configuration ok',
          'build ok',
          'base url ok',
          'database ok',
          'clock ok',
          'connections ok',
          'migrations ok',
          'queues ok',
          'workers ok',
          'file storage ok',
          'embeddings ok',
          'text search ok',
          'encryption key ok',
          'addresses ok',
          'users ok',
          'keys in browsers ok',
        ],
      )
    })

    it('names every unusable setting and continues', async () => {
      const { of } = await diagnosis({ NODE_ENV: 'production', JWT_SECRET: '', PORT: 'x', WORKER_CONCURRENCY: '0' })
      const named = of('configuration').map(({ detail }) => detail.split(':')[0])
      assert.deepEqual(named.sort(), ['BASE_URL', 'JWT_SECRET', 'PORT', 'WORKER_CONCURRENCY'])
      assert.equal(of('database')[0].status, 'ok')
    })

    it('names the parts that are not built', () => {
      const folder = fs.mkdtempSync(path.join(tmpdir(), 'build-'))
      try {
        fs.mkdirSync(path.join(folder, 'cli/dist'), { recursive: true })
        fs.writeFileSync(path.join(folder, 'cli/dist/main.js'), '')
        const { status, detail } = checkBuild(folder)
        const missing = 'not built: the console, the interactive reference, the packages of clients'
        assert.deepEqual([status, detail], ['warn', missing])
      } finally {
        fs.rmSync(folder, { recursive: true })
      }
    })

    it('warns of settings that are probably not intended', async () => {
      const warned = async (env: Record<string, string>) =>
        (await diagnosis(env)).of('settings').map(({ status, detail, fix }) => `${status} ${detail}: ${fix}`)
      assert.deepEqual(await warned({}), [])
      assert.deepEqual(
        await warned({ WORKER_CONCURENCY: '5', MUSTER_PORT: '80', TRUST_PROXY: 'true', CORS_ALLOWED_ORIGINS: '*' }),
        [
          'warn WORKER_CONCURENCY is no setting: Did you mean WORKER_CONCURRENCY?',
          'warn MUSTER_PORT is no setting: Did you mean PORT?',
          'warn TRUST_PROXY=true accepts a client address from every client: Set the number of proxies in front of web.',
        ],
      )
      const [cors, ...others] = await warned({ NODE_ENV: 'production', BASE_URL: 'https://muster.example' })
      assert.match(cors, /^warn CORS_ALLOWED_ORIGINS=\*/)
      assert.deepEqual(others, [])
    })

    it('refuses a BASE_URL that is no address of the web', async () => {
      for (const BASE_URL of ['ftp://muster.example', 'muster.example', 'javascript:1']) {
        const { of } = await diagnosis({ BASE_URL })
        assert.match(of('configuration')[0].detail, /^BASE_URL: must be an absolute http or https URL/)
      }
    })

    it('says that the database does not answer', async () => {
      const { ok, of } = await diagnosis({ DATABASE_URL: 'postgres://a:b@127.0.0.1:1/none' })
      assert.equal(ok, false)
      assert.match(of('database')[0].detail, /does not answer: .*ECONNREFUSED/)
    })

    it('warns of keys that browsers have sent', async () => {
      const { id } = await app.project()
      await app.pool.query(sql.unsafe`update project_keys set browser_used_at = now() where project_id = ${id}`)
      const [{ status, detail }] = (await diagnosis()).of('keys in browsers')
      assert.deepEqual([status, detail], ['warn', '1 key(s) were sent by browsers in the last seven days'])
      await app.pool.query(sql.unsafe`update project_keys set browser_used_at = null`)
    })

    it('names records with an address that the egress rule blocks, and allowed ones not', async () => {
      const { key, id } = await app.project()
      const url = 'http://10.0.0.1/x'
      const made = async (path: string, body: object): Promise<string> =>
        (await createdBy(key, path, { name: 'x', project_id: id, ...body })).id
      const custom = { provider: 'custom', default_model: 'm' }
      const provider = await made('/ai-providers', { ...custom, base_url: 'http://10.0.0.2/v1' })
      const auth = { type: 'oauth2_client_credentials', client_id: 'a', client_secret: 'b', token_url: url }
      const blocked = [
        provider,
        await made('/webhooks', { url, events: ['*'] }),
        await made('/tools', { execute: { url: 'https://example.com/{id}', auth } }),
        await made('/tools', { type: 'mcp', mcp: { url: 'http://[::1]/mcp' } }),
        await made('/tools', {
          type: 'pipeline',
          pipeline: { steps: [{ id: 'a', tool: { name: 'b', execute: { url } } }] },
        }),
        await made('/agents', { ai_provider_id: provider, tool_bindings: [{ tool: { name: 'b', execute: { url } } }] }),
      ]
      await made('/webhooks', { url, events: ['*'], active: false })
      await made('/tools', { execute: { url: 'https://8.8.8.8/localhost' } })
      const [{ status, detail, fix }] = (await diagnosis()).of('addresses')
      assert.equal(status, 'warn')
      assert.deepEqual(detail.split(': ')[1].split(', '), blocked.toSorted(), detail)
      assert.match(fix as string, /EGRESS_ALLOW_HOSTS/)
      const allowed = await diagnosis({ EGRESS_ALLOW_HOSTS: '10.0.0.0/8,127.0.0.1,::1' })
      assert.equal(allowed.of('addresses')[0].status, 'ok')
      await app.admin.delete(`/projects/${id}?force=true`)
    })

    it('warns of the development key and of a missing BASE_URL', async () => {
      const { of } = await diagnosis({ SECRETS_ENCRYPTION_KEY: '' })
      assert.match(of('encryption key')[0].detail, /development key/)
      assert.equal(of('base url')[0].status, 'warn')
    })

    it('says where files cannot be kept', async () => {
      const storage = async (env: Record<string, string>) => {
        const { of } = await diagnosis(env)
        const [{ status, detail, fix }] = of('file storage')
        assert.equal(fix !== undefined, status !== 'ok')
        return `${status} ${detail}`
      }
      const dir = fs.mkdtempSync(path.join(tmpdir(), 'muster-doctor-'))
      try {
        const local = { FILES_STORAGE_PROVIDER: 'local' }
        assert.equal(
          await storage({ FILES_STORAGE_PROVIDER: 'tape' }),
          'fail FILES_STORAGE_PROVIDER must be one of postgres, local, s3',
        )
        assert.equal(await storage(local), 'fail FILES_STORAGE_DIR is not set')
        assert.equal(await storage({ ...local, FILES_STORAGE_DIR: dir }), `ok in ${dir}`)
        assert.match(await storage({ ...local, FILES_STORAGE_DIR: path.join(dir, 'none') }), /^fail .*ENOENT/)
        fs.writeFileSync(path.join(dir, 'file'), '')
        assert.match(await storage({ ...local, FILES_STORAGE_DIR: path.join(dir, 'file') }), /^fail .*not a directory/)
        assert.deepEqual(fs.readdirSync(dir), ['file'])
      } finally {
        fs.rmSync(dir, { recursive: true })
      }
    })

    it('puts an object into the bucket and deletes it, and says what the store refuses', async () => {
      const s3 = await startS3()
      const env = {
        FILES_STORAGE_PROVIDER: 's3',
        FILES_S3_BUCKET: s3.bucket,
        FILES_S3_REGION: 'eu-central-1',
        FILES_S3_ENDPOINT: s3.url,
        FILES_S3_FORCE_PATH_STYLE: 'true',
        AWS_ACCESS_KEY_ID: s3.accessKeyId,
        AWS_SECRET_ACCESS_KEY: s3.secretAccessKey,
      }
      try {
        const well = await diagnosis(env)
        assert.deepEqual(
          well.of('file storage').map(({ status, detail }) => [status, detail]),
          [['ok', `in bucket ${s3.bucket}`]],
        )
        assert.deepEqual([s3.requests.length > 1, s3.objects.size], [true, 0])
        s3.refuse = () => ({ status: 403, code: 'AccessDenied' })
        const ill = await diagnosis(env)
        assert.equal(ill.of('file storage')[0].status, 'fail')
        assert.match(ill.of('file storage')[0].detail, /does not accept files: .*AccessDenied/)
        assert.match(ill.of('file storage')[0].fix as string, /FILES_S3_\*/)
      } finally {
        await s3.close()
      }
    })

    it('has the embedding provider embed a text', async () => {
      const server = await startEmbeddingServer(32)
      const env = {
        EMBEDDING_PROVIDER: 'openai',
        EMBEDDING_MODEL: 'm',
        EMBEDDING_DIMENSIONS: '32',
        EMBEDDING_BASE_URL: server.url,
      }
      const embeddings = async (settings: Record<string, string>) => (await diagnosis(settings)).of('embeddings')[0]
      try {
        assert.deepEqual(await embeddings(env), {
          name: 'embeddings',
          status: 'ok',
          detail: 'openai m, 32 dimensions',
        })
        assert.equal(server.calls.length, 1)
        const other = await embeddings({ ...env, EMBEDDING_DIMENSIONS: '64' })
        assert.equal(other.status, 'fail')
        assert.match(other.fix as string, /EMBEDDING_DIMENSIONS, now 64/)
        server.behave = () => ({ status: 401, body: { error: { message: 'no such key' } } })
        const denied = await embeddings(env)
        assert.equal(denied.status, 'fail')
        assert.match(denied.detail, /refused the credentials.*no such key/)
        const none = await embeddings({ EMBEDDING_PROVIDER: 'openai' })
        assert.equal(none.status, 'warn')
        assert.match(none.detail, /EMBEDDING_MODEL is not: searches use words only/)
      } finally {
        await server.close()
      }
    })

    it('misses a text search configuration, and pgvector where it is demanded', async () => {
      const { ok, of } = await diagnosis({
        KNOWLEDGE_TEXT_SEARCH_CONFIG: 'klingon',
        KNOWLEDGE_VECTOR_INDEX: 'pgvector',
      })
      assert.equal(ok, false)
      assert.match(of('text search')[0].detail, /no configuration klingon/)
      assert.match(of('vector index')[0].detail, /^KNOWLEDGE_VECTOR_INDEX: pgvector requires/)
      const english = await diagnosis({ KNOWLEDGE_TEXT_SEARCH_CONFIG: 'english' })
      assert.deepEqual([english.of('text search')[0].status, english.of('vector index')], ['ok', []])
    })

    it('names a list of addresses that cannot be read', async () => {
      const { of } = await diagnosis({ EGRESS_ALLOW_HOSTS: '10.0.0.0/99' })
      assert.match(of('configuration').at(-1)?.detail ?? '', /^EGRESS_ALLOW_HOSTS: /)
    })

    it('prints a line per check, with the step that fixes it', async () => {
      const { code, stdout } = await alone(['doctor'])
      assert.equal(code, 0)
      assert.match(stdout, /^ok {4}database +PostgreSQL \d+/m)
      assert.match(stdout, /^warn {2}base url .*\n +Set BASE_URL/m)
    })
  })

  describe('secrets', () => {
    const OTHER = 'ab'.repeat(32)

    it('verify and doctor find values whose key is gone, reencrypt moves them to the new one', async () => {
      const { id } = await app.project()
      const made = await app.admin.post('/secrets', { project_id: id, name: 'k', value: 'hidden' })
      assert.equal(made.status, 201)
      const old = app.config.SECRETS_ENCRYPTION_KEY[0]

      const lost = await alone(['secrets', 'verify', '--json'], { SECRETS_ENCRYPTION_KEY: OTHER })
      assert.equal(lost.code, 1)
      assert.ok(JSON.parse(lost.stdout).undecryptable >= 1)
      const ill = await diagnosis({ SECRETS_ENCRYPTION_KEY: OTHER })
      assert.equal(ill.of('encryption key')[0].status, 'fail')

      const rotating = { SECRETS_ENCRYPTION_KEY: OTHER, SECRETS_ENCRYPTION_KEY_PREVIOUS: old }
      assert.equal((await diagnosis(rotating)).of('encryption key')[0].status, 'warn')
      assert.equal((await muster(['secrets', 'verify'], rotating)).code, 0)
      const done = await muster(['secrets', 'reencrypt', '--json'], rotating)
      assert.equal(done.code, 0, done.stderr)
      assert.equal(JSON.parse(done.stdout).remaining, 0)
      assert.equal((await muster(['secrets', 'verify'], { SECRETS_ENCRYPTION_KEY: OTHER })).code, 0)
      // Back, for the tests that follow.
      const back = { SECRETS_ENCRYPTION_KEY: old, SECRETS_ENCRYPTION_KEY_PREVIOUS: OTHER }
      assert.equal((await muster(['secrets', 'reencrypt'], back)).code, 0)
    })

    it('reencrypt exits 1 when values are left', async () => {
      const { code, stderr } = await muster(['secrets', 'reencrypt'], { SECRETS_ENCRYPTION_KEY: OTHER })
      assert.equal(code, 1)
      assert.match(stderr, /[1-9]\d* values remain/)
    })
  })

  it('reprocess deliveries sends failed ones again, once', async () => {
    const receiver = await startReceiver()
    const { id: project } = await app.project()
    const hook = await app.admin.post('/webhooks', {
      project_id: project,
      name: 'hook',
      url: receiver.url,
      events: ['agents.*'],
    })
    const failed = async (age: string) => {
      const id = newId('whd')
      await app.pool.query(sql.unsafe`
        insert into webhook_deliveries (id, webhook_id, project_id, event_id, event_type, envelope, status, attempts, created_at)
        values (${id}, ${hook.body.id}, ${project}, ${newId('evt')}, 'agents.created', '{"id":"evt_x"}', 'failed', 3,
          now() - ${age}::interval)`)
      return id
    }
    const ids = [await failed('3 days'), await failed('1 hour'), await failed('1 minute')]
    const recent = ['--from', new Date(Date.now() - 86_400_000).toISOString()]
    const args = ['reprocess', 'deliveries', '--project', project]

    assert.deepEqual(await json(...args, ...recent, '--dry-run'), { found: 2, redelivered: 0, dry_run: true })
    assert.equal((await json(...args, '--id', ids[0], '--dry-run')).found, 1)
    assert.equal((await json(...args, '--webhook', 'wh_other', '--dry-run')).found, 0)
    assert.equal((await json(...args, '--limit', '1', ...recent)).redelivered, 1)
    assert.equal((await json(...args, ...recent)).redelivered, 1)
    assert.equal((await json(...args, ...recent)).redelivered, 0)
    await eventually(() => receiver.requests.length === 2, { what: 'two deliveries' })
    const again = await app.admin.get(`/webhook-deliveries?webhook_id=${hook.body.id}&limit=100`)
    const origins = again.body.data.map((each: { redelivery_of: string | null }) => each.redelivery_of).filter(Boolean)
    assert.deepEqual(origins.sort(), ids.slice(1).sort())
    await receiver.close()
  })

  it('reprocess generations wakes turns without a message, and only those', async () => {
    const { id: project } = await app.project()
    const provider = await app.admin.post('/ai-providers', {
      project_id: project,
      name: 'none',
      provider: 'custom',
      base_url: 'http://127.0.0.1:1/v1',
      default_model: 'm',
    })
    const agent = await app.admin.post('/agents', { project_id: project, ai_provider_id: provider.body.id })
    assert.equal(agent.status, 201, JSON.stringify(agent.body))
    const session = await app.admin.post('/sessions', { agent_id: agent.body.id, auto_generate: true })
    const posted = await app.admin.post(`/sessions/${session.body.id}/messages`, { message: 'hello' })
    const { id: user } = (await app.admin.get('/users/me')).body
    const alone = await app.services.write(tx =>
      createTurn(tx, app.services, {
        project_id: project,
        agent_id: agent.body.id,
        messages: [{ role: 'user', content: 'hello' }],
        authority: { type: 'user', id: user, via: null },
        streamed: false,
        shape: 'agent',
      }),
    )
    const turns = [posted.body.generation_id, alone.generation_id].sort()
    const args = ['reprocess', 'generations', '--project', project]
    const waiting = async () =>
      (await app.services.queues.stats())
        .filter(({ queue }) => queue === 'conversation.process' || queue === 'turn.execute')
        .map(each => each.waiting)

    assert.equal((await json(...args)).found, 0)
    await app.pool.query(sql.unsafe`delete from pgboss.job_common`)
    const found = await json(...args, '--dry-run')
    assert.deepEqual(found.generations.map(({ id }: { id: string }) => id).sort(), turns)
    assert.deepEqual(await waiting(), [0, 0])
    assert.equal((await json(...args, '--status', 'in_progress')).found, 0)
    assert.equal((await json(...args, '--id', turns[0])).woken, 1)
    assert.equal((await json(...args)).woken, 1)
    assert.deepEqual(await waiting(), [1, 1])
    assert.equal((await json(...args)).found, 0)
  })

  it('reprocess dead-letters lists, shows and replays them', async () => {
    const { queues } = app.services
    const workers = await startWorkers({
      services: { ...app.services, log: silentLog() },
      handlers: [
        handler(expireQueue, {}, async () => {
          throw new Error('does not work')
        }),
      ],
      concurrency: 1,
      listen: app.services.notifications,
    })
    const approval = { approval_id: 'x', project_id: 'proj_x' }
    await queues.send([
      { queue: expireQueue, data: approval },
      { queue: expireQueue, data: approval },
    ])
    const name = expireQueue.name
    await eventually(async () => (await queues.deadLetters.list({ queue: name })).length === 2)
    await workers.stop(1000)
    assert.match((await diagnosis()).of('dead letters')[0].detail, /approval\.expire 2/)

    const letters = await json('reprocess', 'dead-letters', 'list', '--queue', name)
    assert.equal(letters.length, 2)
    const shown = await muster(['reprocess', 'dead-letters', 'list'])
    assert.match(shown.stdout, new RegExp(`^${letters[0].id} +${name} +3 .*does not work`, 'm'))
    const one = await muster(['reprocess', 'dead-letters', 'inspect', letters[0].id])
    assert.equal(JSON.parse(one.stdout).queue, name)
    const none = await muster(['reprocess', 'dead-letters', 'inspect', '00000000-0000-4000-8000-000000000000'])
    assert.equal(none.code, 1)
    const unknown = await muster(['reprocess', 'dead-letters', 'replay', '--queue', 'nothing'])
    assert.equal(unknown.code, 1)
    assert.match(unknown.stderr, /queue nothing not found/)

    const replay = ['reprocess', 'dead-letters', 'replay']
    assert.equal((await json(...replay, '--dry-run')).found, 2)
    assert.equal((await json(...replay, '--project', 'proj_other', '--dry-run')).found, 0)
    assert.equal((await json(...replay, '--id', letters[1].id)).replayed, 1)
    assert.deepEqual((await json(...replay, '--queue', name)).by_queue, { [name]: 1 })
    assert.equal((await queues.deadLetters.list({ queue: name })).length, 0)
    assert.equal((await queues.stats()).find(({ queue }) => queue === name)?.waiting, 2)
  })

  it('the settings in docs/operations.md match the settings in the code', () => {
    const file = path.join(root, 'docs/operations.md')
    const document = fs.readFileSync(file, 'utf8')
    assert.equal(withSettings(document), document, 'run npm run docs')
  })
})
