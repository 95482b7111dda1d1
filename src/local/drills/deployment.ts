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
  readonly #env: Record<string, string>
  readonly #children = new Set<ChildProcess>()
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
    for (const child of this.#children) child.kill('SIGKILL')
  }

  /** Runs a command of the checkout to its end and returns its output. */
  async command(args: readonly string[], directory = CHECKOUT): Promise<string> {
    const program = path.join(directory, 'bin/muster.mjs')
    const env = { ...this.#env, DATABASE_URL: this.databaseUrl }
    const { stdout } = await promisify(execFile)(process.execPath, [program, ...args], { cwd: directory, env })
    return stdout
  }

  /** Starts a process as the Procfile does, and waits until it is ready. */
  async start(kind: ProcessKind, directory = CHECKOUT): Promise<RunningProcess> {
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
    const port = await new Promise<number>((resolve, reject) => {
      const onLine = (line: string) => {
        if (output.push(line) > OUTPUT_LINES) output.shift()
        const [, found] = (line.includes('is ready') && /"(?:port|health_port)":(\d+)/.exec(line)) || []
        if (found) resolve(Number(found))
      }
      for (const stream of [child.stdout, child.stderr]) readLines(stream, onLine)
      child.once('error', reject)
      void exited.then(() => reject(new Error(`${kind} ended before it was ready:\n${output.join('\n')}`)))
    })
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
   * @throws Error if it does not exit with 0
   */
  async replace(kind: ProcessKind, directory = CHECKOUT): Promise<void> {
    await this.start(kind, directory)
    const stopped = this.running[kind].shift() as RunningProcess
    const { code, signal } = await stopped.end('SIGTERM')
    if (code !== 0) throw new Error(`${kind} exited with ${code ?? signal}:\n${stopped.output.slice(-20).join('\n')}`)
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

function readLines(stream: NodeJS.ReadableStream, onLine: (line: string) => void): void {
  let rest = ''
  stream.on('data', chunk => {
    const lines = (rest + chunk).split('\n')
    rest = lines.pop() as string
    for (const line of lines) onLine(line)
  })
}
