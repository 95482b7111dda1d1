import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import { connect } from 'node:net'
import path from 'node:path'
import { findFreePort, runServerProgram } from '../postgres.ts'
import { query, temporaryDirectory } from './deployment.ts'
import { NotPossibleError } from './drill.ts'
import { waitUntilNone } from './wait.ts'

/** Where Debian and Ubuntu install servers, by version. */
const INSTALLED = '/usr/lib/postgresql'
const SERVER_PROGRAMS = ['postgres', 'initdb', 'pg_ctl']
const START_SECONDS = 60

/** Directories with the programs of installed servers, newest first. */
export const installedServers = (): string[] =>
  fs
    .globSync('*/bin/initdb', { cwd: INSTALLED })
    .toSorted((a, b) => Number.parseInt(b, 10) - Number.parseInt(a, 10))
    .map(file => path.join(INSTALLED, path.dirname(file)))

/**
 * Returns the directory of an installed server that has the programs: DRILL_PG_BIN, one of the PATH, or the newest one.
 * @throws NotPossibleError
 */
export function findServer(programs: readonly string[]): string {
  const { DRILL_PG_BIN, PATH = '' } = process.env
  const candidates = DRILL_PG_BIN ? [DRILL_PG_BIN] : [...PATH.split(path.delimiter), ...installedServers()]
  const needed = [...SERVER_PROGRAMS, ...programs]
  const found = candidates.find(bin => needed.every(program => fs.existsSync(path.join(bin, program))))
  if (found) return found
  throw new NotPossibleError(
    `the PostgreSQL programs ${needed.join(', ')} are not in one directory of ${DRILL_PG_BIN ? 'DRILL_PG_BIN' : `PATH or ${INSTALLED}`}`,
  )
}

/** A server of an installed version in a temporary directory, on a TCP port of 127.0.0.1. */
export class Cluster {
  readonly bin: string
  readonly dir: string
  readonly port: number
  readonly #remove: () => void

  constructor(bin: string, port: number) {
    const directory = temporaryDirectory()
    // Only the owner may enter a directory of mkdtemp, and the server does not run as root.
    fs.chmodSync(directory.path, 0o711)
    this.bin = bin
    this.port = port
    this.dir = path.join(directory.path, 'pg')
    this.#remove = directory.remove
    // Before the directory is removed, which has the ID of the server's process.
    process.prependOnceListener('exit', this.#stopAtExit)
  }

  static async open(bin: string): Promise<Cluster> {
    return new Cluster(bin, await findFreePort())
  }

  /** URL of a database, as superuser. */
  url(database: string): string {
    return `postgres://muster@127.0.0.1:${this.port}/${database}`
  }

  async initialise(...options: string[]): Promise<void> {
    const args = ['--username=muster', '--auth=trust', '--encoding=UTF8', '--locale=C']
    await this.run('initdb', [`--pgdata=${this.dir}`, ...args, ...options])
  }

  async start(settings: readonly string[] = []): Promise<void> {
    const all = [
      `port=${this.port}`,
      'listen_addresses=127.0.0.1',
      'unix_socket_directories=',
      'max_connections=200',
      'jit=off',
      ...settings,
    ]
    await this.#control([
      'start',
      '--wait',
      `--log=${path.join(this.dir, 'server.log')}`,
      `--timeout=${START_SECONDS}`,
      `--options=${all.map(setting => `-c ${setting}`).join(' ')}`,
    ])
  }

  /** Ends the server without a checkpoint, as a crash does. */
  crash(): Promise<void> {
    return this.#control(['stop', '--mode=immediate'])
  }

  /** Kills all processes of the server by SIGKILL. */
  async kill(): Promise<void> {
    killServer(this.#pid() as number)
    await waitUntilNone('end of the server', async () => ((await isListening(this.port)) ? 1 : 0), { pauseMs: 20 })
  }

  /** Removes the data of a server that has ended. */
  clear(): void {
    fs.rmSync(this.dir, { recursive: true, maxRetries: 10, retryDelay: 100 })
  }

  promote(): Promise<void> {
    return this.#control(['promote', '--wait'])
  }

  /** Runs a program of the server's version as its user. */
  run(program: string, args: string[]): Promise<void> {
    return runServerProgram(path.join(this.bin, program), this.dir, args)
  }

  async close(): Promise<void> {
    process.off('exit', this.#stopAtExit)
    await this.crash().catch(() => {})
    this.#remove()
  }

  #control(args: string[]): Promise<void> {
    return this.run('pg_ctl', [...args, `--pgdata=${this.dir}`])
  }

  #pid(): number | null {
    const file = path.join(this.dir, 'postmaster.pid')
    return fs.existsSync(file) ? Number.parseInt(fs.readFileSync(file, 'utf8'), 10) : null
  }

  readonly #stopAtExit = () => {
    const pid = this.#pid()
    if (pid === null) return
    try {
      // An immediate shutdown.
      process.kill(pid, 'SIGQUIT')
    } catch {
      // It was killed.
    }
  }
}

/** Kills a server, and its other processes: one of them may wait for another that has ended, and would never end itself. */
export function killServer(pid: number): void {
  const { stdout } = spawnSync('pgrep', ['-P', String(pid)], { encoding: 'utf8' })
  for (const each of [pid, ...stdout.split('\n').filter(Boolean).map(Number)])
    try {
      process.kill(each, 'SIGKILL')
    } catch {
      // It has ended.
    }
}

const isListening = (port: number): Promise<boolean> =>
  new Promise(resolve => {
    const socket = connect(port, '127.0.0.1')
    const end = (isOpen: boolean) => () => {
      socket.destroy()
      resolve(isOpen)
    }
    socket.once('connect', end(true)).once('error', end(false))
  })

/** Starts a server with an empty database `muster`. */
export async function startCluster(bin: string): Promise<Cluster> {
  const cluster = await Cluster.open(bin)
  try {
    await cluster.initialise()
    await cluster.start()
    await query(cluster.url('postgres'), 'create database muster template template0')
    return cluster
  } catch (error) {
    await cluster.close()
    throw error
  }
}
