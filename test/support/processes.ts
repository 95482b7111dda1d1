import { type ChildProcess, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { readLines, readyPort } from '#local/drills/lines.ts'
import { testEnvironment } from './environment.ts'

export const root = path.resolve(import.meta.dirname, '../..')

export type TestProcess = {
  child: ChildProcess
  pid: number
  /** Base URL of a web process; of the health port for a worker. */
  url: string
  output: string[]
  exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>
  kill(signal?: NodeJS.Signals): Promise<{ code: number | null; signal: NodeJS.Signals | null }>
}

/** What processes of tests get of this one's environment. */
export const inherited = (): Record<string, string> => {
  const { PATH, HOME, NODE_COMPILE_CACHE, NODE_OPTIONS } = process.env
  const given = { PATH, HOME, NODE_COMPILE_CACHE, NODE_OPTIONS }
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value)) as Record<string, string>
}

/** A larger young generation is collected less often, which saves a twentieth of the processor time of a test. */
export const GARBAGE_FLAGS = ['--min-semi-space-size=16']

/**
 * Flags of processes that run one test file or program after the other. Objects that survive stay to their end, so V8 need
 * not collect them repeatedly: not below 256 MB, and not when a test waits.
 */
export const LASTING_FLAGS = [...GARBAGE_FLAGS, '--initial-old-space-size=256', '--no-memory-reducer']

/** Kills a child when this process ends first. */
export function endWithThisProcess(child: ChildProcess): void {
  const end = () => child.kill('SIGKILL')
  process.once('exit', end)
  child.once('exit', () => process.off('exit', end))
}

/**
 * Starts a real web or worker process on a test's database and waits until it is ready; `flags` are flags of node,
 * `onLine` gets the lines that the process prints, `directory` has the sources.
 */
export async function startProcess(
  kind: 'web' | 'worker',
  databaseUrl: string,
  env: Record<string, string> = {},
  args: string[] = [],
  flags: readonly string[] = GARBAGE_FLAGS,
  onLine: (line: string) => void = () => {},
  directory = root,
): Promise<TestProcess> {
  const script = kind === 'web' ? 'src/web.ts' : 'jobs/worker.ts'
  const child = spawn(process.execPath, [...flags, script, ...args], {
    cwd: directory,
    env: { ...inherited(), ...testEnvironment(databaseUrl), ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const output: string[] = []
  endWithThisProcess(child)
  const exited = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>(resolve =>
    child.once('exit', (code, signal) => resolve({ code, signal })),
  )
  const port = await new Promise<number>((resolve, reject) => {
    const rest = readLines(child, line => {
      output.push(line)
      onLine(line)
      const found = readyPort(line)
      if (found !== null) resolve(found)
    })
    void exited.then(({ code, signal }) =>
      reject(new Error(`${kind} ended with ${code ?? signal} before it was ready:\n${output.join('\n')}${rest()}`)),
    )
  })
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
export const HEAP_FLAGS = readFileSync(path.join(root, 'bin/launch'), 'utf8').match(/--[a-z-]+(?:=\d+)?/g) as string[]

/** What a process holds in memory, and the most that it ever held, in bytes; as the kernel of Linux counts it. */
export async function resident(pid: number): Promise<{ now: number; most: number }> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8')
  const bytes = (name: string) => Number(new RegExp(`${name}:\\s+(\\d+) kB`).exec(status)?.[1]) * 1024
  return { now: bytes('VmRSS'), most: bytes('VmHWM') }
}
