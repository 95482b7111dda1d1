import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '../..')
export const PROGRAM = path.join(root, 'bin/muster.mjs')

/** Settings of this machine that the program would read. */
const FOREIGN = /^(MUSTER_|XDG_|SSH_|BROWSER$|DISPLAY$|WAYLAND_|HTTPS?_PROXY$|https?_proxy$|NO_COLOR$)/

export type Result = { code: number | string; stdout: string; stderr: string }

export type RunOptions = { input?: string | Buffer; env?: Record<string, string>; program?: string }

export type Started = {
  child: ChildProcess
  output: { stdout: string; stderr: string }
  ended: Promise<Result>
}

/** A user of the command line: an address, a token, and a directory of profiles. */
export class User {
  readonly directory = fs.mkdtempSync(path.join(tmpdir(), 'muster-cli-'))
  readonly env: Record<string, string>

  constructor(url?: string, token?: string | null) {
    this.env = {
      MUSTER_CONFIG_DIR: path.join(this.directory, 'config'),
      XDG_CACHE_HOME: path.join(root, 'node_modules/.cache'),
      ...(url ? { MUSTER_URL: url } : {}),
      ...(token ? { MUSTER_TOKEN: token } : {}),
    }
  }

  /** Starts the program. */
  start(args: readonly string[], options: RunOptions = {}): Started {
    return this.#spawn([process.execPath, [options.program ?? PROGRAM, ...args]], options)
  }

  /** Runs the program to its end. */
  run(args: readonly string[], options?: RunOptions): Promise<Result> {
    return this.start(args, options).ended
  }

  /** Runs the program on a terminal; `stdout` is what the terminal receives, `stderr` goes to a file. */
  async onTerminal(args: readonly string[], options: RunOptions = {}): Promise<Result> {
    const notes = path.join(this.directory, 'stderr')
    const quoted = [process.execPath, PROGRAM, ...args].map(each => `'${each.replaceAll("'", `'\\''`)}'`).join(' ')
    const { ended } = this.#spawn(['script', ['-qefc', `${quoted} 2>'${notes}'`, '/dev/null']], options)
    const { code, stdout } = await ended
    return { code, stdout: stdout.replaceAll('\r\n', '\n'), stderr: fs.readFileSync(notes, 'utf8') }
  }

  #spawn([command, args]: [string, string[]], { input, env = {} }: RunOptions): Started {
    const clean = Object.fromEntries(Object.entries(process.env).filter(([name]) => !FOREIGN.test(name)))
    const child = spawn(command, args, {
      cwd: this.directory,
      env: { ...clean, ...this.env, ...env },
      stdio: ['pipe', 'pipe', 'pipe'],
    })
    child.stdin!.on('error', () => {})
    child.stdin!.end(input ?? '')
    const output = { stdout: '', stderr: '' }
    for (const name of ['stdout', 'stderr'] as const) child[name]!.on('data', part => (output[name] += part))
    const ended = once(child, 'close').then(([code, signal]) => ({ code: code ?? signal, ...output }))
    return { child, output, ended }
  }

  /** Writes a file of the user and returns its path. */
  file(name: string, content: string | Buffer): string {
    const file = path.join(this.directory, name)
    fs.mkdirSync(path.dirname(file), { recursive: true })
    fs.writeFileSync(file, content)
    return file
  }

  close(): void {
    fs.rmSync(this.directory, { recursive: true, force: true })
  }
}

/** Returns the peak of the resident memory of a process in KiB, as Linux counts it; null after its end. */
export function peakKilobytes({ pid }: ChildProcess): number | null {
  const found = /VmHWM:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'))
  return found && Number(found[1])
}

/** A service with a list of `count` rows, each with a text of `bytes`; `pages` counts its answers. */
export async function startRows(count: number, bytes: number) {
  const text = 'x'.repeat(bytes)
  const rows = { url: '', pages: 0, close: () => {} }
  const server = http.createServer((req, res) => {
    rows.pages++
    const query = new URL(req.url as string, 'http://service').searchParams
    const [limit, offset] = [Number(query.get('limit') ?? 20), Number(query.get('offset') ?? 0)]
    const data = Array.from({ length: Math.max(0, Math.min(limit, count - offset)) }, (_, index) => ({
      id: `actor_${String(offset + index).padStart(26, '0')}`,
      name: text,
    }))
    res.writeHead(200, { 'content-type': 'application/json' })
    res.end(JSON.stringify({ data, total: count, limit, offset }))
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  rows.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  rows.close = () => {
    server.close()
    server.closeAllConnections()
  }
  return rows
}
