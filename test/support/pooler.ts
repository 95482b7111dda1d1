import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { pooledUrl, tcpUrl } from './environment.ts'
import { quietPort } from './postgres.ts'
import { endWithThisProcess } from './processes.ts'

/** The program of PgBouncer: of PGBOUNCER_BIN, else of the PATH; undefined without one. */
export const PGBOUNCER: string | undefined =
  process.env.PGBOUNCER_BIN ||
  [...(process.env.PATH ?? '').split(path.delimiter), '/usr/sbin', '/usr/local/sbin']
    .map(directory => path.join(directory, 'pgbouncer'))
    .find(fs.existsSync)

/** Startup parameters that the pooler must ignore. */
export const IGNORED = 'options,statement_timeout,idle_in_transaction_session_timeout,extra_float_digits'

/** What the pooler drops of the settings of a session, and a role or database must have. */
export const SETTINGS = {
  timezone: 'UTC',
  statement_timeout: '60s',
  idle_in_transaction_session_timeout: '60s',
  enable_partition_pruning: 'off',
}

/** Settings of transaction mode. */
export const TRANSACTION_MODE = {
  pool_mode: 'transaction',
  ignore_startup_parameters: IGNORED,
  max_prepared_statements: '200',
}

const NOBODY = 65_534

/** Whether PgBouncer is of release 1.`minor` or later. */
export function isSince(minor: number): boolean {
  const { stdout } = spawnSync(PGBOUNCER as string, ['--version'], { encoding: 'utf8' })
  const [, major, found] = /(\d+)\.(\d+)/.exec(stdout) as RegExpExecArray
  return Number(major) > 1 || Number(found) >= minor
}

export type Pooler = { port: number; stop(): Promise<void> }

/** Starts PgBouncer before all databases of the server of a URL, and waits until it takes connections. */
export async function startPooler(databaseUrl: string, settings: Record<string, string>): Promise<Pooler> {
  const server = tcpUrl(databaseUrl)
  const port = await quietPort()
  const dir = fs.mkdtempSync(path.join(tmpdir(), 'muster-pgbouncer-'))
  fs.chmodSync(dir, 0o755)
  const file = path.join(dir, 'pgbouncer.ini')
  const target = `host=${server.hostname} port=${server.port} user=${server.username} password=${decodeURIComponent(server.password)}`
  const all = {
    listen_addr: '127.0.0.1',
    listen_port: String(port),
    unix_socket_dir: '',
    auth_type: 'any',
    default_pool_size: '60',
    ...settings,
  }
  const lines = Object.entries(all).map(([name, value]) => `${name} = ${value}`)
  fs.writeFileSync(file, `[databases]\n* = ${target}\n[pgbouncer]\n${lines.join('\n')}\n`)
  // It refuses to run as root.
  const owner = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {}
  const child = spawn(PGBOUNCER as string, [file], { stdio: 'ignore', ...owner })
  endWithThisProcess(child)
  const stop = async () => {
    await end(child)
    fs.rmSync(dir, { recursive: true })
  }
  try {
    while (!(await takesConnections(pooledUrl(databaseUrl, port)))) {
      if (child.exitCode !== null) throw new Error('pgbouncer has ended')
      await sleep(20)
    }
  } catch (error) {
    await stop()
    throw error
  }
  return { port, stop }
}

/** Starts PgBouncer in transaction mode before the server of a run of tests, whose user gets the settings that it drops. */
export async function startPoolerOfTests(databaseUrl: string): Promise<Pooler> {
  if (!PGBOUNCER || !isSince(21))
    throw new Error('--pooler requires PgBouncer 1.21 or later, on the PATH or in PGBOUNCER_BIN')
  const client = new pg.Client({ connectionString: databaseUrl })
  await client.connect()
  for (const [name, value] of Object.entries(SETTINGS))
    await client.query(`alter role current_user set ${name} to '${value}'`)
  await client.end()
  return startPooler(databaseUrl, { ...TRANSACTION_MODE, server_idle_timeout: '5', max_client_conn: '2000' })
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGKILL')
  await once(child, 'exit')
}

async function takesConnections(connectionString: string): Promise<boolean> {
  const client = new pg.Client({ connectionString })
  client.on('error', () => {})
  try {
    await client.connect()
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ECONNREFUSED') throw error
    return false
  } finally {
    await client.end()
  }
}
