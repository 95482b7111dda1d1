import { type ChildProcess, spawn } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { testEnvironment } from './environment.ts'

const root = path.resolve(import.meta.dirname, '../..')

export type TestProcess = {
  child: ChildProcess
  pid: number
  /** Base URL of a web process; of the health port for a worker. */
  url: string
  output: string[]
  exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>
  kill(signal?: NodeJS.Signals): Promise<{ code: number | null; signal: NodeJS.Signals | null }>
}

/**
 * Starts a real web or worker process on a test's database and waits until it is ready; `flags` are those of node,
 * `onLine` gets what the process prints.
 */
export async function startProcess(
  kind: 'web' | 'worker',
  databaseUrl: string,
  env: Record<string, string> = {},
  args: string[] = [],
  flags: readonly string[] = [],
  onLine: (line: string) => void = () => {},
): Promise<TestProcess> {
  const { PATH, HOME, NODE_COMPILE_CACHE } = process.env
  const own = { PATH, HOME, ...(NODE_COMPILE_CACHE ? { NODE_COMPILE_CACHE } : {}) }
  const script = kind === 'web' ? 'src/web.ts' : 'jobs/worker.ts'
  const child = spawn(process.execPath, [...flags, script, ...args], {
    cwd: root,
    env: { ...own, ...testEnvironment(databaseUrl), ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const output: string[] = []
  // A test process that ends early leaves none behind.
  const end = () => child.kill('SIGKILL')
  process.once('exit', end)
  child.once('exit', () => process.off('exit', end))
  const exited = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>(resolve =>
    child.once('exit', (code, signal) => resolve({ code, signal })),
  )
  const ready = new Promise<number>((resolve, reject) => {
    let rest = ''
    const read = (chunk: Buffer) => {
      rest += chunk
      const lines = rest.split('\n')
      rest = lines.pop() as string
      for (const line of lines) {
        output.push(line)
        onLine(line)
        const found = /"(?:port|health_port)":(\d+)/.exec(line)
        if (found && line.includes('is ready')) resolve(Number(found[1]))
      }
    }
    child.stdout?.on('data', read)
    child.stderr?.on('data', read)
    void exited.then(({ code, signal }) =>
      reject(new Error(`${kind} ended with ${code ?? signal} before it was ready:\n${output.join('\n')}${rest}`)),
    )
  })
  const port = await ready
  return {
    child,
    pid: child.pid as number,
    url: `http://127.0.0.1:${port}`,
    output,
    exited,
    async kill(signal = 'SIGKILL') {
      child.kill(signal)
      return exited
    },
  }
}

/** The flags of `npm run web` and `npm run worker`. */
export const HEAP_FLAGS = ['--max-semi-space-size=8', '--heap-growing-percent=30']

/** What a process holds in memory, and the most that it ever held, in bytes; as the kernel of Linux counts it. */
export async function resident(pid: number): Promise<{ now: number; most: number }> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8')
  const bytes = (name: string) => Number(new RegExp(`${name}:\\s+(\\d+) kB`).exec(status)?.[1]) * 1024
  return { now: bytes('VmRSS'), most: bytes('VmHWM') }
}
