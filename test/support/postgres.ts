import { createHash, randomBytes, randomInt } from 'node:crypto'
import fs from 'node:fs'
import { createRequire } from 'node:module'
import net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import pg from 'pg'
import { type EmbeddedServer, startEmbedded, stopEmbedded } from '../../src/local/postgres.ts'

const root = path.resolve(import.meta.dirname, '../..')
const SERVER_DIR = 'muster-test-'
const OBJECT_IN_USE = '55006'

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

/** Starts an embedded server without durability in a temporary directory, and ends those that killed runs left. */
export async function startServer(): Promise<EmbeddedServer> {
  for (const name of fs.readdirSync(tmpdir())) {
    if (!name.startsWith(SERVER_DIR) || runs(Number.parseInt(name.slice(SERVER_DIR.length), 10))) continue
    await stopEmbedded(path.join(tmpdir(), name))
    fs.rmSync(path.join(tmpdir(), name), { recursive: true, force: true })
  }
  return startEmbedded({ dir: path.join(tmpdir(), `${SERVER_DIR}${process.pid}`), ephemeral: true })
}

/** A free port below those that systems give to outgoing connections, so that nothing takes it before it is used. */
export async function quietPort(): Promise<number> {
  for (;;) {
    const port = randomInt(10_000, 32_768)
    const server = net.createServer()
    const free = await new Promise<boolean>(resolve => {
      server.once('error', () => resolve(false)).listen(port, '127.0.0.1', () => resolve(true))
    })
    if (!free) continue
    await new Promise(resolve => server.close(resolve))
    return port
  }
}

/** Creates a database, empty or a copy of database `from`; returns its url. */
export async function createDatabase(name = databaseName(), from = 'template0'): Promise<string> {
  await administer(client => client.query(`create database "${name}" template "${from}"`))
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

/**
 * A migrated database of one's own: every test file takes one in `before` and drops it in `after`. It has the queues of every
 * module.
 */
export async function cloneTemplate(): Promise<{ url: string; drop(): Promise<void> }> {
  const name = databaseName()
  const url = await createDatabase(name, await migratedTemplate())
  return { url, drop: () => dropDatabase(name) }
}

/**
 * The name of the migrated template database, created when the server does not have it. Its name carries what it was
 * made of, so that a server which outlives a change of the migrations never hands out a stale copy.
 */
async function migratedTemplate(): Promise<string> {
  // Imported late: the test command takes its server from here and must run when the application does not load.
  const { migrate } = await import('../../src/core/db/migrate.ts')
  const { queues } = await import('../../src/core/jobs/queue.ts')
  const { loadedModules, loadModules } = await import('../../src/core/api/module.ts')
  const { modules } = await import('../../src/modules.ts')
  if (loadedModules().length === 0) loadModules(modules)
  const declared = queues
    .all()
    .map(({ name, policy, retry }) => JSON.stringify([name, policy, retry]))
    .sort()
  const name = `muster_template_${templateHash(declared)}`
  await administer(async client => {
    // Test processes start at once: one builds, the others wait here. The lock ends with the connection.
    await client.query(`select pg_advisory_lock(hashtext('muster_template'))`)
    const found = await client.query('select 1 from pg_database where datname = $1', [name])
    if (found.rowCount) return
    const building = `${name}_building`
    await client.query(`drop database if exists "${building}" with (force)`)
    await client.query(`create database "${building}" template template0`)
    await migrate(await databaseUrl(building))
    await client.query(`alter database "${building}" rename to "${name}"`)
    // A database with connections cannot be copied.
    await client.query(`alter database "${name}" with allow_connections false`)
  })
  return name
}

function templateHash(declarations: string[]): string {
  const hash = createHash('sha256').update(declarations.join('\0'))
  const sql = path.join(root, 'sql')
  const migrations = fs.readdirSync(sql).filter(file => file.endsWith('.sql'))
  for (const file of migrations.sort()) hash.update(`${file}\0`).update(fs.readFileSync(path.join(sql, file)))
  for (const file of ['db/migrate.ts', 'jobs/queue.ts']) hash.update(fs.readFileSync(path.join(root, 'src/core', file)))
  hash.update(createRequire(import.meta.url)('pg-boss/package.json').version)
  return hash.digest('hex').slice(0, 16)
}

function databaseName(): string {
  return `muster_test_${randomBytes(8).toString('hex')}`
}

async function databaseUrl(name: string): Promise<string> {
  const url = new URL(await serverUrl())
  url.pathname = `/${name}`
  return url.href
}

async function administer<T>(work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: await serverUrl(), connectionTimeoutMillis: 10_000 })
  await client.connect()
  try {
    return await work(client)
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
