import { createHash, randomBytes } from 'node:crypto'
import fs from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import path from 'node:path'
import pg from 'pg'
import { withParameters } from '#core/db/database-url.ts'
import { type EmbeddedServer, startEmbedded, stopEmbedded } from '#local/postgres.ts'
import { testEnvironment } from './environment.ts'

export { findFreePort as quietPort } from '#local/postgres.ts'

const root = path.resolve(import.meta.dirname, '../..')
const SERVER_DIR = 'muster-test-'
const MEMORY = '/dev/shm'
const MEMORY_BYTES = 6 * 1024 ** 3
const OBJECT_IN_USE = '55006'

/** Schema of the databases of tests; empty for `public`. */
const TEST_SCHEMA = process.env.TEST_SCHEMA ?? ''

function inTestSchema(databaseUrl: string): string {
  const url = new URL(databaseUrl)
  if (TEST_SCHEMA) url.searchParams.set('schema', TEST_SCHEMA)
  return url.href
}

/** Schema of the second cell in the profile of cells. */
export const CELL_SCHEMA = 'cell_second'

/** Returns the URL of the second cell of a database, whose schema clients of pg use too. */
export function secondCellUrl(databaseUrl: string): string {
  const url = new URL(withParameters(databaseUrl, { options: `-c search_path=${CELL_SCHEMA}` }))
  url.searchParams.set('schema', CELL_SCHEMA)
  return url.href
}

let server: Promise<string> | undefined

/**
 * The url of the server that tests use, naming a maintenance database: TEST_DATABASE_URL (its user must be allowed to
 * create databases), else an embedded server of this process that ends with it.
 */
export function serverUrl(): Promise<string> {
  server ??= process.env.TEST_DATABASE_URL
    ? Promise.resolve(process.env.TEST_DATABASE_URL)
    : startServer().then(({ url }) => url)
  return server
}

/**
 * Where servers keep their data: in memory if there is enough, because the thousand files of a database take a disk's file
 * system a second of processor time and memory a fiftieth of that.
 */
function serverHome(): string {
  if (!fs.existsSync(MEMORY)) return tmpdir()
  const { bavail, bsize } = fs.statfsSync(MEMORY)
  return bavail * bsize >= MEMORY_BYTES ? MEMORY : tmpdir()
}

/**
 * Starts an embedded server in a temporary directory, and ends those that killed runs left. With `flushes` it is on a disk, and
 * commits wait for that.
 */
export async function startServer({ flushes = false } = {}): Promise<EmbeddedServer & { pid: number }> {
  const home = flushes ? tmpdir() : serverHome()
  for (const entry of fs.readdirSync(home, { withFileTypes: true })) {
    const { name } = entry
    if (!name.startsWith(SERVER_DIR) || runs(Number.parseInt(name.slice(SERVER_DIR.length), 10))) continue
    // A run that was killed while it made its server leaves the file of the password too.
    if (entry.isDirectory()) await stopEmbedded(path.join(home, name))
    fs.rmSync(path.join(home, name), { recursive: true, force: true })
  }
  const dir = path.join(home, `${SERVER_DIR}${process.pid}`)
  const started = await startEmbedded({ dir, ephemeral: true, flushes })
  return { ...started, pid: Number.parseInt(fs.readFileSync(path.join(dir, 'postmaster.pid'), 'utf8'), 10) }
}

/** Creates a database, empty or a copy of database `from`; returns its url. */
export async function createDatabase(name = databaseName(), from = 'template0'): Promise<string> {
  await administer(client => client.query(`create database "${name}" template "${from}" strategy file_copy`))
  return databaseUrl(name)
}

/** Drops a database when it exists, ending its connections. */
export async function dropDatabase(name: string): Promise<void> {
  await administer(async client => {
    for (let tries = 1; ; tries++) {
      try {
        return await client.query(`drop database if exists "${name}" with (force)`)
      } catch (error) {
        // The server gives the connections it ends five seconds to be gone.
        if ((error as pg.DatabaseError).code !== OBJECT_IN_USE || tries === 4) throw error
      }
    }
  })
}

/** The admin of databases that are cloned with one. */
export const ADMIN = { username: 'admin', password: 'correct horse battery' }

/**
 * A migrated database of one's own: every test file takes one in `before` and drops it in `after`. It has the queues of every
 * module, and with `admin` the first user, ADMIN.
 */
export async function cloneTemplate(
  options: { admin?: boolean } = {},
): Promise<{ url: string; drop(): Promise<void> }> {
  const name = databaseName()
  const templates = await migratedTemplates()
  const admin = process.env.TEST_CELLS ? templates.cells : templates.admin
  const url = inTestSchema(await createDatabase(name, options.admin ? admin : templates.empty))
  return { url, drop: () => dropDatabase(name) }
}

/**
 * The names of the migrated template databases, created when the server does not have them. The names carry a hash of their
 * sources, so that a server which outlives a change of the migrations never hands out a stale copy.
 */
async function migratedTemplates(): Promise<{ empty: string; admin: string; cells: string }> {
  // Imported late: the test command takes its server from here and must run when the application does not load.
  const { migrate } = await import('#core/queues/migrate.ts')
  const { queues } = await import('#core/queues/queue.ts')
  const { loadedModules, loadModules } = await import('#core/modules/module.ts')
  const { modules } = await import('#modules.ts')
  if (loadedModules().length === 0) loadModules(modules)
  const declared = queues
    .all()
    .map(({ name, policy, retry }) => JSON.stringify([name, policy, retry]))
    .sort()
  const empty = `muster_template_${TEST_SCHEMA}${templateHash(declared)}`
  const admin = `${empty}_admin`
  const cells = `${empty}_cells`
  await administer(async client => {
    // Test processes start together: one builds, the others wait here. The lock ends with the connection.
    await client.query(`select pg_advisory_lock(hashtext('muster_template'))`)
    const build = async (name: string, from: string, fill: (url: string) => Promise<unknown>) => {
      const found = await client.query('select 1 from pg_database where datname = $1', [name])
      if (found.rowCount) return
      const building = `${name}_building`
      await client.query(`drop database if exists "${building}" with (force)`)
      await client.query(`create database "${building}" template "${from}"`)
      await fill(inTestSchema(await databaseUrl(building)))
      await client.query(`alter database "${building}" rename to "${name}"`)
      // A database with connections cannot be copied.
      await client.query(`alter database "${name}" with allow_connections false`)
    }
    await build(empty, 'template0', url => migrate(url))
    await build(admin, empty, makeAdmin)
    if (process.env.TEST_CELLS) await build(cells, admin, makeSecondCell)
  })
  return { empty, admin, cells }
}

async function makeSecondCell(url: string): Promise<void> {
  const { migrate } = await import('#core/queues/migrate.ts')
  const { openServices } = await import('#core/services/lifecycle.ts')
  const { silentLog } = await import('#core/base/log.ts')
  const { loadConfig } = await import('#config.ts')
  const { startCopies } = await import('#core/services/copies.ts')
  await migrate(secondCellUrl(url))
  const services = await openServices(loadConfig(testEnvironment(url)), { log: silentLog(), role: 'cli' })
  await startCopies(services, { name: 'second', number: 1, url: secondCellUrl(url) })
  await services.close()
}

async function makeAdmin(url: string): Promise<void> {
  const { openServices } = await import('#core/services/lifecycle.ts')
  const { silentLog } = await import('#core/base/log.ts')
  const { loadConfig } = await import('#config.ts')
  const { bootstrapAdmin } = await import('#identity/users/bootstrap.ts')
  const services = await openServices(loadConfig(testEnvironment(url)), { log: silentLog(), role: 'cli' })
  await bootstrapAdmin(services, ADMIN)
  await services.close()
}

function templateHash(declarations: string[]): string {
  const hash = createHash('sha256').update(declarations.join('\0'))
  const sql = path.join(root, 'sql')
  const migrations = fs.readdirSync(sql).filter(file => file.endsWith('.sql'))
  for (const file of migrations.sort()) hash.update(`${file}\0`).update(fs.readFileSync(path.join(sql, file)))
  for (const file of [
    'core/queues/migrate.ts',
    'core/queues/breaking-migrations.ts',
    'core/queues/queue.ts',
    'identity/users/bootstrap.ts',
  ])
    hash.update(fs.readFileSync(path.join(root, 'src', file)))
  hash.update(createRequire(import.meta.url)('pg-boss/package.json').version)
  return hash.digest('hex').slice(0, 16)
}

function databaseName(): string {
  return `muster_test_${randomBytes(8).toString('hex')}`
}

/** The URL of a database by TCP, for proxies between a process and the server. */
export function tcpUrl(databaseUrl: string): URL {
  const url = new URL(databaseUrl)
  url.searchParams.delete('host')
  return url
}

async function databaseUrl(name: string): Promise<string> {
  const url = new URL(await serverUrl())
  url.pathname = `/${name}`
  return url.href
}

type Administrator = { query(text: string, values?: unknown[]): Promise<pg.QueryResult> }

async function administer<T>(work: (client: Administrator) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: await serverUrl(), connectionTimeoutMillis: 10_000 })
  await client.connect()
  try {
    // With a separate callback a statement is not watched for silence: copying a database may take long.
    return await work({
      query: (text, values = []) =>
        new Promise((resolve, reject) => {
          client.query(text, values, (error, result) => (error ? reject(error) : resolve(result)))
        }),
    })
  } finally {
    await client.end()
  }
}

function runs(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}
