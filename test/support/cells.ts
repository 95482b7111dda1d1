import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { loadConfig } from '#config.ts'
import { silentLog } from '#core/base/log.ts'
import { rawQuery } from '#core/db/sql.ts'
import { migrate } from '#core/queues/migrate.ts'
import { sealedForCell } from '#core/services/cell-directory.ts'
import { startCopies } from '#core/services/copies.ts'
import { type OpenServices, openServices } from '#core/services/lifecycle.ts'
import { bootstrapAdmin } from '#identity/users/bootstrap.ts'
import { issueUserToken } from '#identity/users/sign-in.ts'
import { findFreePort, startEmbedded } from '#local/postgres.ts'
import { ADMIN, type Client, client, eventually } from './app.ts'
import { testEnvironment } from './environment.ts'
import { cloneTemplate } from './postgres.ts'
import { startProcess, type TestProcess } from './processes.ts'

/** The databases of a deployment with cells. */
type Databases = {
  /** URLs of the databases. */
  home: string
  second: string
  kill?(): Promise<void>
  restart?(): Promise<void>
  /** Stops the processes of the second server, or lets them continue. */
  silence?(isSilent?: boolean): void
  /** Ends the server of home without a checkpoint, and starts it again. */
  restartHome?(): Promise<void>
  close(): Promise<unknown>
}

/** A deployment with cells, whose web and worker are separate processes. */
export type TestCells = Omit<Databases, 'close'> & {
  url: string
  /** The first admin, signed in. */
  admin: Client
  web: TestProcess
  worker: TestProcess | null
  /** Services of home, past the API. */
  services: OpenServices
  env: Record<string, string>
  as(token: string | null): Client
  /** A project in a cell, with a key that allows everything in it. */
  project(cell: string, name?: string): Promise<{ id: string; key: Client; keyId: string }>
  rows(databaseUrl: string, text: string, values?: unknown[]): Promise<readonly any[]>
  close(): Promise<void>
}

/** Two schemas of one database of the tests' server. */
async function oneDatabase(): Promise<Databases> {
  const { url, drop } = await cloneTemplate({ admin: true })
  const second = new URL(url)
  second.searchParams.set('schema', 'cell_second')
  await migrate(second.href)
  return { home: url, second: second.href, close: drop }
}

/** A process and its children. */
const processesOf = (pid: number): number[] => [
  pid,
  ...fs.readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number),
]

const hasEnded = (pid: number): boolean => {
  try {
    return /\) Z /.test(fs.readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return true
  }
}

/** Two servers, of which the second can be killed and started again. */
async function twoServers(): Promise<Databases> {
  const start = async (name: string) => {
    const dir = fs.mkdtempSync(path.join(tmpdir(), `muster-cells-${name}-`))
    const options = {
      dir: path.join(dir, 'pg'),
      port: await findFreePort(),
      ephemeral: true,
      settings: ['wal_level=logical', 'max_wal_senders=10', 'full_page_writes=on', 'synchronous_commit=on'],
    }
    fs.chmodSync(dir, 0o711)
    const server = await startEmbedded(options)
    await migrate(server.url)
    const pid = () => Number.parseInt(fs.readFileSync(path.join(options.dir, 'postmaster.pid'), 'utf8'), 10)
    return {
      url: server.url,
      kill: async () => {
        const killed = pid()
        process.kill(killed, 'SIGQUIT')
        await eventually(() => hasEnded(killed), { every: 5 })
      },
      silence: (isSilent = true) => {
        for (const each of processesOf(pid())) process.kill(each, isSilent ? 'SIGSTOP' : 'SIGCONT')
      },
      restart: async () => void (await startEmbedded(options)),
      close: async () => {
        await server.stop()
        fs.rmSync(dir, { recursive: true, force: true })
      },
    }
  }
  const [home, second] = await Promise.all([start('home'), start('second')])
  const services = await openServices(loadConfig(testEnvironment(home.url)), { log: silentLog(), role: 'cli' })
  await bootstrapAdmin(services, ADMIN)
  await services.close()
  const { kill, restart, silence } = second
  return {
    home: home.url,
    second: second.url,
    kill: async () => void (await kill()),
    restart,
    silence,
    restartHome: async () => {
      await home.kill()
      await home.restart()
    },
    close: () => Promise.all([home.close(), second.close()]),
  }
}

/**
 * Starts a deployment with the cells `home` and `second`.
 * @param options.servers whether the second is on another server, which can be killed, and not a schema of the same database
 * @param options.workers whether a worker process runs, of all concerns
 */
export async function startCells({
  servers = false,
  workers = false,
  env = {},
}: {
  servers?: boolean
  workers?: boolean
  env?: Record<string, string>
} = {}): Promise<TestCells> {
  const databases = await (servers ? twoServers() : oneDatabase())
  const { home, second } = databases
  const open = (url: string) => openServices(loadConfig(testEnvironment(url)), { log: silentLog(), role: 'cli' })
  const services = await open(home)
  const rows = async (databaseUrl: string, text: string, values?: unknown[]): Promise<readonly any[]> => {
    const of = databaseUrl === home ? services : await open(databaseUrl)
    try {
      return (await of.pool.any(rawQuery(text, values))) as readonly any[]
    } finally {
      if (of !== services) await of.close()
    }
  }
  await startCopies(services, { name: 'second', number: 1, url: second })
  await rows(home, `insert into cells (name, number, url) values ('second', 1, $1)`, [
    services.secrets.seal(second, sealedForCell('second')),
  ])
  const settings = { CELLS: 'true', ...env }
  const [web, worker] = await Promise.all([
    startProcess('web', home, settings),
    workers ? startProcess('worker', home, settings) : null,
  ])
  const [account] = await rows(home, 'select id, role, token_version from users where username = $1', [ADMIN.username])
  const admin = client(web.url, (await issueUserToken(services, account)).token)
  let counter = 0
  return {
    ...databases,
    url: web.url,
    admin,
    web,
    worker,
    services,
    env: settings,
    as: token => client(web.url, token),
    async project(cell, name = `project ${++counter}`) {
      const made = await admin.post('/projects', { name, cell })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      const { id } = made.body
      const statement = [{ effect: 'Allow', action: ['*'], resource: [`srn:${id}:*:*`] }]
      const policy = await admin.post('/policies', { document: { statement } })
      const key = await admin.post('/project-keys', { project_id: id, policy_ids: [policy.body.id] })
      assert.equal(key.status, 201, JSON.stringify(key.body))
      return { id, key: client(web.url, key.body.secret), keyId: key.body.id }
    },
    rows,
    async close() {
      await Promise.all([web.kill('SIGTERM'), worker?.kill('SIGTERM')])
      await services.close()
      await databases.close()
    },
  }
}
