import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { openPool } from '#core/db/pool.ts'
import { rawQuery } from '#core/db/sql.ts'
import { startEmbedded } from '../postgres.ts'
import { readLines, readyPort } from './lines.ts'

export const CHECKOUT = fileURLToPath(new URL('../../..', import.meta.url))

export type ProcessKind = 'web' | 'worker'

/** A web process or a worker. `url` is its API or its health port. */
export type RunningProcess = {
  kind: ProcessKind
  url: string
  pid: number
  /** Its newest lines. */
  output: string[]
  end(signal: NodeJS.Signals): Promise<{ code: number | null; signal: NodeJS.Signals | null }>
}

/** A database of the drill, and how it ends. */
export type Database = { url: string; close(): Promise<void> }

const OUTPUT_LINES = 100
/** Time within which a process must be ready, and within which it must have ended after SIGTERM. */
const LIMIT_MS = 120_000
const ADMIN = { username: 'admin', password: randomBytes(18).toString('base64url') }

/** Creates an empty temporary directory that this process removes at its end. */
export function temporaryDirectory(): { path: string; remove(): void } {
  const directory = fs.mkdtempSync(path.join(tmpdir(), 'muster-drill-'))
  const remove = () => {
    process.off('exit', remove)
    fs.rmSync(directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 })
  }
  process.once('exit', remove)
  return { path: directory, remove }
}

/**
 * Opens the database of a drill: a new one on the server of `serverUrl`, which is dropped at the end, or one on an
 * embedded server that flushes its commits.
 */
export async function openDatabase(serverUrl?: string): Promise<Database> {
  if (serverUrl) return createDatabase(serverUrl)
  const directory = temporaryDirectory()
  try {
    // Only the owner may enter a directory of mkdtemp, and the server does not run as root.
    fs.chmodSync(directory.path, 0o711)
    const server = await startEmbedded({ dir: path.join(directory.path, 'pg'), ephemeral: true, flushes: true })
    return {
      url: server.url,
      close: async () => {
        await server.stop()
        directory.remove()
      },
    }
  } catch (error) {
    directory.remove()
    throw error
  }
}

/** Creates a database on a server and returns its URL; `close` drops it. */
export async function createDatabase(serverUrl: string): Promise<Database> {
  const name = `muster_drill_${process.pid}_${randomBytes(4).toString('hex')}`
  const url = new URL(serverUrl)
  url.pathname = `/${name}`
  await query(serverUrl, `create database "${name}"`)
  return {
    url: url.href,
    close: async () => void (await query(serverUrl, `drop database if exists "${name}" with (force)`)),
  }
}

/** Runs one statement on a separate connection. */
export async function query(databaseUrl: string, text: string): Promise<readonly any[]> {
  const pool = await openPool({ databaseUrl, connections: 1, applicationName: 'muster drill', prepare: false })
  try {
    return await pool.any(rawQuery(text))
  } finally {
    await pool.end()
  }
}

/** A deployment of web processes and workers on one database. */
export class Deployment {
  readonly running: Record<ProcessKind, RunningProcess[]> = { web: [], worker: [] }
  /** Processes that did not exit with 0 after SIGTERM. */
  readonly uncleanStops: string[] = []
  readonly #env: Record<string, string>
  readonly #children = new Set<ChildProcess>()
  #closed = false
  readonly #directory = temporaryDirectory()
  #databaseUrl: string

  constructor({ databaseUrl, env }: { databaseUrl: string; env?: Record<string, string> }) {
    this.#databaseUrl = databaseUrl
    const { PATH = '', HOME = '/', NODE_COMPILE_CACHE, NODE_OPTIONS } = process.env
    this.#env = {
      // The programs start with the Node of this process.
      PATH: `${path.dirname(process.execPath)}${path.delimiter}${PATH}`,
      HOME,
      ...(NODE_COMPILE_CACHE && { NODE_COMPILE_CACHE }),
      ...(NODE_OPTIONS && { NODE_OPTIONS }),
      NODE_ENV: 'production',
      BASE_URL: 'http://127.0.0.1',
      PORT: '0',
      HOST: '127.0.0.1',
      WORKER_HEALTH_PORT: '0',
      AUTO_MIGRATE: 'false',
      LOG_LEVEL: 'info',
      JWT_SECRET: randomBytes(48).toString('base64url'),
      SECRETS_ENCRYPTION_KEY: randomBytes(32).toString('hex'),
      EGRESS_ALLOW_HOSTS: '127.0.0.1',
      ...env,
    }
    process.once('exit', this.#killAll)
  }

  get databaseUrl(): string {
    return this.#databaseUrl
  }

  /** Lets processes that start from then on use another database. */
  useDatabase(url: string): void {
    this.#databaseUrl = url
  }

  /** Directory for files of the drill, removed by `close`. */
  get files(): string {
    return this.#directory.path
  }

  readonly #killAll = () => {
    this.#closed = true
    for (const child of this.#children) child.kill('SIGKILL')
  }

  /** Runs a command of the checkout to its end and returns its output. */
  async command(args: readonly string[], directory = CHECKOUT): Promise<string> {
    const program = path.join(directory, 'bin/muster.mjs')
    const env = { ...this.#env, DATABASE_URL: this.databaseUrl }
    return this.run(process.execPath, [program, ...args], { cwd: directory, env })
  }

  /** Runs a program to its end, or until the deployment is closed, and returns its output. */
  async run(
    program: string,
    args: readonly string[],
    options: { cwd?: string; env?: NodeJS.ProcessEnv } = {},
  ): Promise<string> {
    this.#mustBeOpen()
    const running = promisify(execFile)(program, args, options)
    this.#children.add(running.child)
    try {
      return (await running).stdout
    } finally {
      this.#children.delete(running.child)
    }
  }

  /** The interrupted step of a drill continues after the deployment is closed. */
  #mustBeOpen(): void {
    if (this.#closed) throw new Error('the deployment is closed')
  }

  /** Starts a process as the Procfile does, and waits until it is ready. */
  async start(kind: ProcessKind, directory = CHECKOUT): Promise<RunningProcess> {
    this.#mustBeOpen()
    const script = kind === 'web' ? 'src/web.ts' : 'jobs/worker.ts'
    const child = spawn('bin/launch', [script], {
      cwd: directory,
      env: { ...this.#env, DATABASE_URL: this.databaseUrl },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.#children.add(child)
    const exited = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>(resolve =>
      child.once('exit', (code, signal) => {
        this.#children.delete(child)
        resolve({ code, signal })
      }),
    )
    const output: string[] = []
    let limit: NodeJS.Timeout | undefined
    const port = await new Promise<number>((resolve, reject) => {
      const fail = (what: string) => reject(new Error(`${kind} ${what}:\n${output.join('\n')}`))
      readLines(child, line => {
        if (output.push(line) > OUTPUT_LINES) output.shift()
        const found = readyPort(line)
        if (found !== null) resolve(found)
      })
      child.once('error', reject)
      void exited.then(() => fail('ended before it was ready'))
      limit = setTimeout(fail, LIMIT_MS, `was not ready within ${LIMIT_MS / 1000} s`)
    }).finally(() => clearTimeout(limit))
    const started: RunningProcess = {
      kind,
      url: `http://127.0.0.1:${port}`,
      pid: child.pid as number,
      output,
      end: signal => {
        child.kill(signal)
        return exited
      },
    }
    this.running[kind].push(started)
    return started
  }

  /** Starts a number of processes of each kind. */
  async startAll(processes: Record<ProcessKind, number>, directory = CHECKOUT): Promise<void> {
    const kinds = (['web', 'worker'] as const).flatMap(kind => Array(processes[kind]).fill(kind) as ProcessKind[])
    await Promise.all(kinds.map(kind => this.start(kind, directory)))
  }

  /** Kills the oldest process of a kind by SIGKILL, while it gets requests, and starts another one. */
  async kill(kind: ProcessKind): Promise<void> {
    const killed = this.running[kind][0]
    const ending = killed.end('SIGKILL')
    this.running[kind].shift()
    await ending
    await this.start(kind)
  }

  /**
   * Starts a process, then stops the oldest process of its kind by SIGTERM. It gets no more requests when it is stopped, as
   * when a balancer has read its readiness.
   */
  async replace(kind: ProcessKind, directory = CHECKOUT): Promise<void> {
    await this.start(kind, directory)
    const stopped = this.running[kind].shift() as RunningProcess
    const limit = setTimeout(() => void stopped.end('SIGKILL'), LIMIT_MS)
    const { code, signal } = await stopped.end('SIGTERM')
    clearTimeout(limit)
    if (code !== 0) this.uncleanStops.push(`${kind} exited with ${code ?? signal}: ${stopped.output.at(-1)}`)
  }

  /** Ends all processes by SIGKILL. */
  async killAll(): Promise<void> {
    const all = [...this.running.web.splice(0), ...this.running.worker.splice(0)]
    await Promise.all(all.map(each => each.end('SIGKILL')))
  }

  /** Creates the first admin and signs in. */
  async signIn(): Promise<string> {
    const post = async (path: string) => {
      const response = await fetch(`${this.running.web[0].url}/api/v1${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(ADMIN),
      })
      const body = (await response.json()) as any
      if (!response.ok) throw new Error(`${path}: ${response.status} ${JSON.stringify(body)}`)
      return body
    }
    await post('/users/bootstrap')
    return (await post('/users/login')).token
  }

  async databaseVersion(): Promise<string> {
    return (await query(this.databaseUrl, 'show server_version'))[0].server_version
  }

  async close(): Promise<void> {
    this.#killAll()
    await this.killAll()
    process.off('exit', this.#killAll)
    this.#directory.remove()
  }
}
