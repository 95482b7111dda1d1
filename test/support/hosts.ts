import { type ChildProcess, spawn } from 'node:child_process'
import type { Socket } from 'node:net'
import { readLines, readyPort } from '#local/drills/lines.ts'
import { testEnvironment } from './environment.ts'
import type { CommandResult, HostMessage } from './host.ts'
import { endWithThisProcess, inherited, LASTING_FLAGS, root } from './processes.ts'

type Host = {
  child: ChildProcess
  busy: boolean
  onLine: (line: string) => void
  onExit: () => void
}

const hosts = new Set<Host>()

/** An idle host, now busy: one of those that run, else a new one. */
function take(): Host {
  const host = [...hosts].find(each => !each.busy) ?? open()
  host.busy = true
  return host
}

function open(): Host {
  const child = spawn(process.execPath, [...LASTING_FLAGS, 'test/support/host.ts'], {
    cwd: root,
    env: inherited(),
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  })
  const host: Host = { child, busy: false, onLine: () => {}, onExit: () => {} }
  endWithThisProcess(child)
  readLines(child, line => host.onLine(line))
  child.once('exit', () => {
    hosts.delete(host)
    host.onExit()
  })
  // An idle one does not keep this process from ending.
  child.unref()
  child.channel?.unref()
  for (const stream of [child.stdout, child.stderr]) (stream as Socket).unref()
  hosts.add(host)
  return host
}

const tell = (host: Host, message: HostMessage) => host.child.send(message)

/** A worker is not left to the handlers of its tests, which may wait for what never comes. */
const GRACE = { SHUTDOWN_GRACE_MS: '500', ORCHESTRATION_SHUTDOWN_GRACE_MS: '500' }

export type HostedProcess = { pid: number; url: string; output: string[]; stop(): Promise<void> }

async function runHosted(
  program: 'web' | 'worker',
  databaseUrl: string,
  env: Record<string, string>,
  kinds: string[],
  onLine: (line: string) => void = () => {},
): Promise<HostedProcess> {
  const host = take()
  const output: string[] = []
  const logged = (text: string) =>
    new Promise<string>((resolve, reject) => {
      host.onExit = () => reject(new Error(`the ${program} process ended before it ${text}:\n${output.join('\n')}`))
      host.onLine = line => {
        output.push(line)
        onLine(line)
        if (line.includes(`"msg":"${program} ${text}"`)) resolve(line)
      }
    })
  const ready = logged('is ready')
  tell(host, { what: 'start', program, env: { ...testEnvironment(databaseUrl), ...GRACE, ...env }, kinds })
  const port = readyPort(await ready)
  let stopping: Promise<void> | undefined
  const stop = async () => {
    const { exitCode, signalCode } = host.child
    if (exitCode !== null || signalCode !== null)
      throw new Error(`the ${program} process has ended with ${exitCode ?? signalCode}:\n${output.join('\n')}`)
    // A test that fails may leave it frozen.
    host.child.kill('SIGCONT')
    const stopped = logged('stopped')
    tell(host, { what: 'stop' })
    await stopped
    host.busy = false
  }
  return {
    pid: host.child.pid as number,
    url: `http://127.0.0.1:${port}`,
    output,
    stop: () => {
      stopping ??= stop()
      return stopping
    },
  }
}

/**
 * Runs a worker in a separate process that may have run others before; `stop` ends the worker as SIGTERM does, and leaves
 * the process to the next. For workers that are not killed; they may be frozen.
 */
export const runWorker = (
  databaseUrl: string,
  env: Record<string, string>,
  kinds: string[],
  onLine?: (line: string) => void,
): Promise<HostedProcess> => runHosted('worker', databaseUrl, env, kinds, onLine)

/** Runs a web process as `runWorker` does a worker. */
export const runWeb = (databaseUrl: string, env: Record<string, string> = {}): Promise<HostedProcess> =>
  runHosted('web', databaseUrl, env, [])

/** Web processes and workers of `runWeb` and `runWorker` that are stopped together. */
export function steadyWorkers() {
  const running: HostedProcess[] = []
  const started = async (starting: Promise<HostedProcess>) => {
    const made = await starting
    running.push(made)
    return made
  }
  return {
    start: (...args: Parameters<typeof runWorker>) => started(runWorker(...args)),
    startWeb: (...args: Parameters<typeof runWeb>) => started(runWeb(...args)),
    async stop(): Promise<void> {
      await Promise.all(running.splice(0).map(({ stop }) => stop()))
    },
  }
}

/** Runs a command line of muster to its end, in a process that may have run others before. */
export async function muster(args: readonly string[], env: Record<string, string> = {}): Promise<CommandResult> {
  const host = take()
  const result = await new Promise<CommandResult>((resolve, reject) => {
    host.onExit = () => reject(new Error(`the process of muster ${args.join(' ')} ended`))
    host.child.once('message', resolve)
    tell(host, { what: 'command', args, env })
  })
  host.busy = false
  return result
}
