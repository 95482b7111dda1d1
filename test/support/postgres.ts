import { createHash, randomBytes } from 'node:crypto'
import fs from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import path from 'node:path'
import pg from 'pg'
import { withParameters } from '#core/db/database-url.ts'
import { type EmbeddedServer, startEmbedded, stopEmbedded } from '#local/postgres.ts'
import { serverOf, testEnvironment } from './environment.ts'

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

/** Whether tests run in the profile of cells. */
const HAS_CELLS = !!process.env.TEST_CELLS

/** Whether the second cell in the profile of cells is a database of a second server, and not a schema. */
export const HAS_TWO_SERVERS = process.env.TEST_CELL_SERVERS === 'true'

/** Schema of the second cell in the profile of cells. */
export const CELL_SCHEMA = 'cell_second'

/** Returns the URL of the second cell of a database, whose schema clients of pg use too. */
export async function secondCellUrl(databaseUrl: string): Promise<string> {
  if (HAS_TWO_SERVERS) return inTestSchema(await urlOfDatabase(nameOf(databaseUrl), 'second'))
  const url = new URL(withParameters(databaseUrl, { options: `-c search_path=${CELL_SCHEMA}` }))
  url.searchParams.set('schema', CELL_SCHEMA)
  return url.href
}

/** Servers of tests; the `second` has only cells. */
type ServerName = 'home' | 'second'

const servers = new Map<ServerName, Promise<string>>()

/**
 * The url of a server that tests use, naming a maintenance database: TEST_DATABASE_URL, of the second server
 * TEST_CELL_DATABASE_URL (their users must be allowed to create databases), else an embedded server of this process that ends
 * with it.
 */
export function serverUrl(name: ServerName = 'home'): Promise<string> {
  const { TEST_DATABASE_URL, TEST_CELL_DATABASE_URL } = process.env
  const given = name === 'home' ? TEST_DATABASE_URL : TEST_CELL_DATABASE_URL
  const url =
    servers.get(name) ??
    (given
      ? Promise.resolve(given)
      : startServer({ name: name === 'home' ? '' : name, replicates: HAS_TWO_SERVERS }).then(started => started.url))
  servers.set(name, url)
  return url
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

/** Connections of logical replication for the cells of as many databases as concurrent tests have. */
const REPLICATIONS = 60

/** Replication sends a commit when it is flushed. */
const REPLICATING_SETTINGS = [
  'wal_level=logical',
  'synchronous_commit=on',
  `max_wal_senders=${REPLICATIONS}`,
  `max_replication_slots=${REPLICATIONS}`,
  `max_active_replication_origins=${REPLICATIONS}`,
  `max_logical_replication_workers=${REPLICATIONS}`,
  `max_worker_processes=${REPLICATIONS + 8}`,
]

/**
 * Starts an embedded server in a temporary directory, and ends those that killed runs left. With `flushes` it is on a disk, and
 * commits wait for that; with `replicates` cells can be in this server and another. `name` distinguishes the servers of a process.
 */
export async function startServer({
  name = '',
  flushes = false,
  replicates = false,
} = {}): Promise<EmbeddedServer & { pid: number }> {
  const home = flushes ? tmpdir() : serverHome()
  for (const entry of fs.readdirSync(home, { withFileTypes: true })) {
    const left = entry.name
    if (!left.startsWith(SERVER_DIR) || runs(Number.parseInt(left.slice(SERVER_DIR.length), 10))) continue
    // A run that was killed while it made its server leaves the file of the password too.
    if (entry.isDirectory()) await stopEmbedded(path.join(home, left))
    fs.rmSync(path.join(home, left), { recursive: true, force: true })
  }
  const dir = path.join(home, `${SERVER_DIR}${process.pid}${name && `-${name}`}`)
  const started = await startEmbedded({
    dir,
    ephemeral: true,
    flushes,
    settings: replicates ? REPLICATING_SETTINGS : [],
  })
  return { ...started, pid: Number.parseInt(fs.readFileSync(path.join(dir, 'postmaster.pid'), 'utf8'), 10) }
}

/** Creates a database, empty or a copy of database `from`; returns its url. */
export async function createDatabase(name = databaseName(), from = 'template0'): Promise<string> {
  await copyDatabase(name, from, 'home')
  return urlOfDatabase(name, 'home')
}

const copyDatabase = (name: string, from: string, server: ServerName): Promise<unknown> =>
  administer(server, client => client.query(`create database "${name}" template "${from}" strategy file_copy`))

/** Drops a database when it exists, ending its connections. */
export const dropDatabase = (name: string): Promise<void> => dropFrom('home', name)

async function dropFrom(server: ServerName, name: string): Promise<void> {
  await administer(server, async client => {
    for (let tries = 1; ; tries++) {
      try {
        await client.query(`drop database if exists "${name}" with (force)`)
        return
      } catch (error) {
        // The server gives the connections it ends five seconds to be gone.
        if ((error as pg.DatabaseError).code !== OBJECT_IN_USE || tries === 4) throw error
      }
    }
  })
}

/** Selects the waits for locks in a database; tests of other databases of the server have others. */
export const LOCK_WAITS = `
  select from pg_locks join pg_stat_activity using (pid) where not granted and datname = current_database()`

/** The admin of databases that are cloned with one. */
export const ADMIN = { username: 'admin', password: 'correct horse battery' }

/**
 * A migrated database of one's own: every test file takes one in `before` and drops it in `after`. It has the queues of every
 * module, and with `admin` the first user, ADMIN, and in the profile of cells the second cell.
 */
export async function cloneTemplate(
  options: { admin?: boolean } = {},
): Promise<{ url: string; drop(): Promise<void> }> {
  const name = databaseName()
  const hasCell = options.admin && HAS_CELLS
  const inSecond = hasCell && HAS_TWO_SERVERS ? cloneInSecondServer(name) : null
  // Awaited after the copy at home.
  inSecond?.catch(() => {})
  const { empty, admin, cells } = await migratedTemplates('home')
  const url = inTestSchema(await createDatabase(name, !options.admin ? empty : hasCell ? cells : admin))
  await inSecond
  return { url, drop: () => (inSecond ? dropWithSecondCell(name, url) : dropDatabase(name)) }
}

async function cloneInSecondServer(name: string): Promise<void> {
  const { empty } = await migratedTemplates('second')
  await copyDatabase(name, empty, 'second')
}

/** Drops a database and its second cell in the other server, without the slot and the subscription that prevent it. */
async function dropWithSecondCell(name: string, url: string): Promise<void> {
  const { stopCopies } = await import('#core/services/copies.ts')
  const { loadConfig } = await import('#config.ts')
  const home = { config: loadConfig(testEnvironment(url)) }
  await stopCopies(home, { name: 'second', number: 1, url: await secondCellUrl(url) })
  await Promise.all([dropFrom('home', name), dropFrom('second', name)])
}

/** Whether a database has a second cell in the second server. */
export async function hasSecondDatabase(databaseUrl: string): Promise<boolean> {
  // A server that a test started itself has no second one, whatever the names of its databases.
  if (serverOf(databaseUrl) !== serverOf(await serverUrl())) return false
  const text = 'select 1 from pg_database where datname = $1'
  const { rowCount } = await administer('second', client => client.query(text, [nameOf(databaseUrl)]))
  return rowCount !== 0
}

/**
 * The names of the migrated template databases, created when the server does not have them: the second has only empty ones. The
 * names carry a hash of their sources, so that a server which outlives a change of the migrations never hands out a stale copy.
 */
async function migratedTemplates(server: ServerName): Promise<{ empty: string; admin: string; cells: string }> {
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
  await administer(server, async client => {
    // Test processes start together: one builds, the others wait here. The lock ends with the connection.
    await client.query(`select pg_advisory_lock(hashtext('muster_template'))`)
    const build = async (name: string, from: string, fill: (url: string) => Promise<unknown>) => {
      const found = await client.query('select 1 from pg_database where datname = $1', [name])
      if (found.rowCount) return
      const building = `${name}_building`
      await client.query(`drop database if exists "${building}" with (force)`)
      await client.query(`create database "${building}" template "${from}"`)
      await fill(inTestSchema(await urlOfDatabase(building, server)))
      await client.query(`alter database "${building}" rename to "${name}"`)
      // A database with connections cannot be copied.
      await client.query(`alter database "${name}" with allow_connections false`)
    }
    await build(empty, 'template0', url => migrate(url))
    if (server === 'second') return
    await build(admin, empty, makeAdmin)
    if (HAS_CELLS && !HAS_TWO_SERVERS) await build(cells, admin, makeSecondCell)
  })
  return { empty, admin, cells: HAS_TWO_SERVERS ? admin : cells }
}

async function makeSecondCell(url: string): Promise<void> {
  const { migrate } = await import('#core/queues/migrate.ts')
  const { openServices } = await import('#core/services/lifecycle.ts')
  const { silentLog } = await import('#core/base/log.ts')
  const { loadConfig } = await import('#config.ts')
  const { startCopies } = await import('#core/services/copies.ts')
  const second = await secondCellUrl(url)
  await migrate(second)
  const services = await openServices(loadConfig(testEnvironment(url)), { log: silentLog(), role: 'cli' })
  await startCopies(services, { name: 'second', number: 1, url: second })
  await services.close()
}

async function makeAdmin(url: string): Promise<void> {
  const { openServices } = await import('#core/services/lifecycle.ts')
  const { silentLog } = await import('#core/base/log.ts')
  const { loadConfig } = await import('#config.ts')
  const { bootstrapAdmin } = await import('#identity/users/bootstrap.ts')
  // Without the pooler of the profile, whose connections would outlive this.
  const config = loadConfig({ ...testEnvironment(url), DATABASE_URL: url })
  const services = await openServices(config, { log: silentLog(), role: 'cli' })
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

const nameOf = (databaseUrl: string): string => new URL(databaseUrl).pathname.slice(1)

async function urlOfDatabase(name: string, server: ServerName): Promise<string> {
  const url = new URL(await serverUrl(server))
  url.pathname = `/${name}`
  return url.href
}

type Administrator = { query(text: string, values?: unknown[]): Promise<pg.QueryResult> }

async function administer<T>(server: ServerName, work: (client: Administrator) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: await serverUrl(server), connectionTimeoutMillis: 10_000 })
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
